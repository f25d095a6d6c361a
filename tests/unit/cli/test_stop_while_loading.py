"""A run that ends while it loads leaves a table that the next run completes."""

import json
import signal
import time
from pathlib import Path

import pytest

from netns.namespaces import Namespace

from .support import MANIFESTS
from .test_run import _path, read_to_end, read_until, running

__all__ = ["_path"]

SERVICES = 2500


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A folder of some thousand Services with ten endpoints each."""
    found = tmp_path / "big"
    found.mkdir()
    items = [MANIFESTS[0]]
    for number in range(SERVICES):
        high, low = divmod(number, 250)
        items.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": f"s{number}", "namespace": "shop"},
                "spec": {"clusterIP": f"10.96.{high}.{low + 1}", "ports": [{"port": 80}]},
            }
        )
        items.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"s{number}-1",
                    "namespace": "shop",
                    "labels": {"kubernetes.io/service-name": f"s{number}"},
                },
                "addressType": "IPv4",
                "ports": [{"name": "", "port": 8080}],
                "endpoints": [{"addresses": [f"10.{64 + host}.{high}.{low + 1}"]} for host in range(10)],
            }
        )
    (found / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return found


def served(namespace: Namespace) -> int:
    """How many ClusterIPs lead somewhere."""
    return namespace.run("nft", "list", "map", "ip", "kube-proxy", "service-ips").count("goto")


@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_table_of_a_run_that_was_ended_while_loading_is_completed_by_the_next(
    namespace: Namespace, big: Path, number: signal.Signals
) -> None:
    with running(namespace, big) as process:
        read_until(process, event="started")
        end = time.monotonic() + 20
        while "kube-proxy" not in namespace.run("nft", "list", "tables", "ip"):
            assert time.monotonic() < end
        asked = time.monotonic()
        process.send_signal(number)
        events = {event["event"] for event in read_to_end(process)}
        code = process.wait(10)
        assert time.monotonic() - asked < 6
    if number == signal.SIGTERM:
        assert code == 0
        assert "stopped" in events
    else:
        assert code == -signal.SIGKILL
        assert served(namespace) < SERVICES, "it was in the middle of it"
    with running(namespace, big) as process:
        read_until(process, family="IPv6", full=True)
        process.send_signal(signal.SIGTERM)
        read_to_end(process)
        assert process.wait(10) == 0
    assert served(namespace) == SERVICES
    with running(namespace, big) as process:
        first = read_until(process, family="IPv4", full=True)[-1]
        process.send_signal(signal.SIGTERM)
        read_to_end(process)
        assert process.wait(10) == 0
    assert (first["event"], first["transactions"]) == ("in step", 0)
