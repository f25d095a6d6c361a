"""Objects and a sink for the tests of this folder."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from nodeproxy.kube.decode import decode
from nodeproxy.kube.objects import KubeObject
from nodeproxy.kube.source import Change, ObjectKey, Problem

WAIT_SECONDS = 10.0


def service(name="web", **spec):
    namespace = spec.pop("namespace", "shop")
    body = {"clusterIP": "10.96.0.10", "ports": [{"port": 80}], **spec}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {field: value for field, value in body.items() if value is not ...},
    }


def read(raw):
    """The object, which must have been good enough, and its problems as ``field: reason``."""
    decoded = decode(raw, "x")
    assert decoded.object is not None, decoded.problems
    assert not any(problem.fatal for problem in decoded.problems)
    return decoded.object, {problem.field: problem.reason for problem in decoded.problems}


def endpoint_slice(name="web-1", **fields):
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        **fields,
    }


def write(path: Path, *documents) -> None:
    """Write documents as JSON, one after the other, in the way that leaves no half-written file."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("\n".join(json.dumps(document) for document in documents))
    temporary.rename(path)


WEB = ObjectKey("Service", "shop", "web")


class RecordingSink:
    """Keeps all that a source says, and lets a test wait for a condition on it."""

    def __init__(self) -> None:
        self.batches: list[list[Change]] = []
        self.completed: list[str] = []
        self.problems: list[Problem] = []
        self.objects: dict[ObjectKey, KubeObject] = {}
        self.log: list[str] = []
        self._condition = threading.Condition()

    def apply(self, changes: Sequence[Change]) -> None:
        with self._condition:
            self.batches.append(list(changes))
            self.log.append("apply")
            for change in changes:
                if change.object is None:
                    del self.objects[change.key]
                else:
                    self.objects[change.key] = change.object
            self._condition.notify_all()

    def complete(self, kind: str) -> None:
        with self._condition:
            self.completed.append(kind)
            self.log.append(f"complete {kind}")
            self._condition.notify_all()

    def report(self, problems: Sequence[Problem]) -> None:
        with self._condition:
            self.problems = list(problems)
            self._condition.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        with self._condition:
            met = self._condition.wait_for(condition, seconds)
            assert met, f"not within {seconds} s; objects {sorted(self.objects)}, problems {self.problems}"

    def wait_for_port(self, port: int, key: ObjectKey = WEB) -> None:
        def is_there() -> bool:
            obj = self.objects.get(key)
            return obj is not None and bool(obj.spec.ports) and obj.spec.ports[0].port == port

        self.wait(is_there)

    def wait_for_problem(self, text: str) -> None:
        self.wait(lambda: any(text in f"{problem.origin} {problem.reason}" for problem in self.problems))
