"""A small HTTP client of the API server, for tests: objects are dicts, and any thread may use it."""

import contextlib
import http.client
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from netns.namespaces import Namespace

Object = dict[str, Any]

_VERSIONS = {
    "Pod": "v1",
    "Node": "v1",
    "Event": "v1",
    "Secret": "v1",
    "Service": "v1",
    "Endpoints": "v1",
    "Namespace": "v1",
    "ConfigMap": "v1",
    "ServiceAccount": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Lease": "coordination.k8s.io/v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "IPAddress": "networking.k8s.io/v1",
    "ServiceCIDR": "networking.k8s.io/v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
}
"""The API version of a kind where a call names the kind alone."""

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(RuntimeError):
    """The API server answered with an error.

    Attributes:
        code: the HTTP status.
        reason: the reason of its Status, such as "NotFound" or "Invalid"; empty if it sent none.
    """

    def __init__(self, what: str, code: int, body: bytes) -> None:
        try:
            status = msgspec.json.decode(body)
            self.reason = str(status.get("reason", ""))
            said = str(status.get("message", ""))
        except (msgspec.DecodeError, AttributeError):
            self.reason, said = "", body[:500].decode(errors="replace").strip()
        self.code = code
        super().__init__(f"{what}: {code} {self.reason}: {said}")


class _Connection(http.client.HTTPSConnection):
    """A connection whose socket belongs to a namespace, whichever thread made it."""

    def __init__(self, namespace: Namespace, host: str, port: int, context: ssl.SSLContext, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._namespace = namespace

    def connect(self) -> None:
        with self._namespace.enter():
            super().connect()


class Api:
    """The client.

    Args:
        namespace: the network namespace that connections are made in.
        host: address of the API server there.
        port: its port.
        ca: the certificate that its own has to be signed by.
        token: bearer token of the user; None: anonymous.
        timeout: seconds that an answer may take.
    """

    def __init__(
        self, namespace: Namespace, host: str, port: int, ca: Path, token: str | None, timeout: float = 60
    ) -> None:
        self._namespace = namespace
        self._address = (host, port)
        self._context = ssl.create_default_context(cafile=str(ca))
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}
        self._generation = 0

    def close(self) -> None:
        """Close the connections that are not in use; those in use are closed once they are not."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for connection in idle:
            connection.close()

    def get(self, kind: str, name: str, namespace: str = "default", *, api_version: str | None = None) -> Object:
        """Read one object; ``namespace`` does not matter for kinds without one.

        Raises:
            ApiError: there is none (404), or it may not be read.
        """
        return self._object("GET", self.path(kind, name, namespace, api_version=api_version))

    def find(
        self, kind: str, name: str, namespace: str = "default", *, api_version: str | None = None
    ) -> Object | None:
        """Read one object, or None if there is none.

        Raises:
            ApiError: it may not be read.
        """
        try:
            return self.get(kind, name, namespace, api_version=api_version)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def list(
        self, kind: str, namespace: str | None = None, *, api_version: str | None = None, **query: str | int
    ) -> Object:
        """Read a list, whole: ``metadata``, and ``items`` that say their kind each.

        Args:
            kind: kind of its objects.
            namespace: the namespace; None: all of them.
            api_version: API version of the kind; None: the usual one.
            query: parameters such as ``labelSelector="app=web"``.
        """
        path = self.path(kind, None, namespace, api_version=api_version)
        found = self._object("GET", path + _query(query))
        for item in found["items"]:
            # The server leaves them out of lists.
            item |= {"apiVersion": found["apiVersion"], "kind": kind}
        return found

    def create(self, item: Object) -> Object:
        """Create an object and return it as the server has it.

        Raises:
            ApiError: it was refused, or is there already (409).
        """
        namespace = item.get("metadata", {}).get("namespace", "default")
        path = self.path(item["kind"], None, namespace, api_version=item["apiVersion"])
        return self._object("POST", path, item)

    def replace(self, item: Object) -> Object:
        """Replace an object; with ``metadata.resourceVersion`` only if it is still of that version."""
        return self._object("PUT", self._own_path(item), item)

    def replace_status(self, item: Object) -> Object:
        """Replace an object's status and nothing else of it."""
        return self._object("PUT", self._own_path(item) + "/status", item)

    def patch(
        self,
        item: Object,
        patch: Object | Sequence[Object],
        *,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
        **query: str | int,
    ) -> Object:
        """Patch an object.

        Args:
            item: the object, or as much of it as says which: apiVersion, kind, and metadata's name and namespace.
            patch: the patch.
            content_type: what sort of patch it is.
            subresource: such as "status" or "scale".
            query: parameters such as ``fieldManager="tests"``.
        """
        path = self._own_path(item) + (f"/{subresource}" if subresource else "") + _query(query)
        return self._object("PATCH", path, patch, content_type)

    def patch_status(self, item: Object, status: Object, *, content_type: str = STRATEGIC_PATCH) -> Object:
        """Patch an object's status with the given fields of it."""
        return self.patch(item, {"status": status}, content_type=content_type, subresource="status")

    def delete(self, item: Object, *, grace: int | None = None, missing_ok: bool = True) -> None:
        """Delete an object.

        Args:
            item: the object, or as much of it as says which.
            grace: seconds of grace; 0 for a Pod on a node that has no kubelet to confirm its end.
            missing_ok: whether it may be gone already.
        """
        options: Object = {} if grace is None else {"gracePeriodSeconds": grace}
        try:
            self._object("DELETE", self._own_path(item), options)
        except ApiError as error:
            if error.code != 404 or not missing_ok:
                raise

    def load(self, items: Iterable[Object], connections: int = 8) -> int:
        """Create many objects over some connections at a time; in order as far as that goes.

        Returns:
            How many were created.

        Raises:
            ApiError: one was refused; the others under way are finished, no more are begun.
        """
        waiting = iter(items)
        lock = threading.Lock()
        errors: list[Exception] = []
        created = 0

        def work() -> None:
            nonlocal created
            while True:
                try:
                    with lock:
                        item = None if errors else next(waiting, None)
                    if item is None:
                        return
                    self.create(item)
                except Exception as error:  # raised again in the caller's thread
                    with lock:
                        errors.append(error)
                    return
                with lock:
                    created += 1

        threads = [threading.Thread(target=work, name=f"load-{number}", daemon=True) for number in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return created

    def watch(
        self,
        kind: str,
        resource_version: str,
        namespace: str | None = None,
        *,
        seconds: int = 30,
        api_version: str | None = None,
        **query: str | int,
    ) -> Iterator[Object]:
        """Yield the events of a watch (``type`` and ``object``) until the server ends it.

        Args:
            kind: kind of the objects.
            resource_version: where it begins.
            namespace: the namespace; None: all of them.
            seconds: after how long the server ends it.
            api_version: API version of the kind; None: the usual one.
            query: more parameters, such as ``allowWatchBookmarks="true"``.

        Raises:
            ApiError: it was refused; errors within the stream are yielded as events of type ERROR.
        """
        parameters = {"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": seconds, **query}
        path = self.path(kind, None, namespace, api_version=api_version) + _query(parameters)
        connection = _Connection(self._namespace, *self._address, self._context, seconds + self._timeout)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ApiError(f"GET {path}", response.status, response.read())
            with contextlib.closing(response):
                for line in response:
                    yield msgspec.json.decode(line)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request as it is: its HTTP status and the answer's body.

        Raises:
            OSError: the server can't be reached, or hung up.
            http.client.HTTPException: it answered something that is not HTTP.
        """
        with self._lock:
            connection = self._idle.pop() if self._idle else None
            generation = self._generation
        for fresh in (connection is None, True):
            connection = connection or _Connection(self._namespace, *self._address, self._context, self._timeout)
            try:
                connection.request(method, path, body, {**self._headers, **(headers or {})})
                response = connection.getresponse()
                answer = response.status, response.read()
            except BaseException as error:
                connection.close()
                # The server closes connections that were idle: not the request's fault.
                if fresh or not isinstance(error, (ConnectionError, ssl.SSLEOFError)):
                    raise
                connection = None
                continue
            with self._lock:
                keep = generation == self._generation and not response.will_close
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()
            return answer
        raise AssertionError  # the second turn returns or raises

    def path(
        self, kind: str, name: str | None, namespace: str | None = "default", *, api_version: str | None = None
    ) -> str:
        """The path of an object, or of a kind's collection where ``name`` is None (of all namespaces, if that is)."""
        version = api_version or _VERSIONS[kind]
        plural, namespaced = self._resource(version, kind)
        parts = [_root(version)]
        if namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(plural)
        if name is not None:
            parts.append(name)
        return "/".join(parts)

    def _own_path(self, item: Object) -> str:
        metadata = item["metadata"]
        namespace = metadata.get("namespace", "default")
        return self.path(item["kind"], metadata["name"], namespace, api_version=item["apiVersion"])

    def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._kinds:
            for entry in self._object("GET", _root(version))["resources"]:
                if "/" not in entry["name"]:
                    self._kinds[version, entry["kind"]] = (entry["name"], entry["namespaced"])
        return self._kinds[version, kind]

    def _object(
        self, method: str, path: str, body: Object | Sequence[Object] | None = None, kind: str = "application/json"
    ) -> Object:
        data = None if body is None else msgspec.json.encode(body)
        code, answer = self.request(method, path, data, {"Content-Type": kind} if data is not None else {})
        if not 200 <= code < 300:
            raise ApiError(f"{method} {path}", code, answer)
        found: Object = msgspec.json.decode(answer)
        return found


def _root(version: str) -> str:
    return f"/api/{version}" if "/" not in version else f"/apis/{version}"


def _query(parameters: Mapping[str, str | int]) -> str:
    return f"?{urlencode(parameters)}" if parameters else ""
