"""What the kernel holds is read the same way from kube-proxy's layout and from ours, and word of it comes at once."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench import cluster, own_process
from bench.errors import BenchError
from bench.kernel import KernelTable
from bench.notices import Notices
from bench.others import NODE, described
from bench.proxy import Load, Proxy, decoded
from layouts import kube_proxy
from netns.namespaces import Namespace

SERVICES = 12
ADDRESSES = {cluster.cluster_ip(number) for number in range(SERVICES)}
ENDPOINTS = {address: 1 for number in range(SERVICES) for address in cluster.pods(number)}

pytestmark = pytest.mark.timeout(120)


def _theirs(namespace: Namespace) -> None:
    every = [described(number, 10) for number in range(SERVICES)]
    namespace.nft(kube_proxy.table_text(4, every, node=NODE))


@contextmanager
def _ours() -> Iterator[Proxy]:
    proxy = Proxy(Load(SERVICES))
    with proxy.working(60):
        yield proxy


def test_kube_proxys_layout_is_understood(namespace: Namespace) -> None:
    _theirs(namespace)
    with KernelTable() as table:
        assert table.frontends() == SERVICES
        assert table.frontend_addresses() == ADDRESSES
        assert table.endpoints() == ENDPOINTS


def test_our_layout_is_understood(namespace: Namespace) -> None:
    with _ours(), KernelTable() as table:
        assert table.frontend_addresses() == ADDRESSES
        assert table.endpoints() == ENDPOINTS


def test_there_may_be_no_table_yet(namespace: Namespace) -> None:
    with KernelTable() as table:
        assert table.frontends() == 0


def test_each_transaction_makes_another_generation(namespace: Namespace) -> None:
    with KernelTable() as table:
        before = table.generation()
        assert table.generation() == before
        namespace.nft("add table ip t")
        assert table.generation() != before


def test_loading_is_noticed_when_the_last_service_is_there_and_not_before(namespace: Namespace) -> None:
    _theirs(namespace)
    with KernelTable() as table:
        began = time.perf_counter()
        assert began <= table.wait_loaded(ADDRESSES, lambda: False, 10) <= time.perf_counter()
        with pytest.raises(BenchError, match=f"{SERVICES} of {SERVICES + 1} Services"):
            table.wait_loaded({*ADDRESSES, "10.96.200.200"}, lambda: False, 0.3)


def test_nobody_waits_for_a_proxy_that_has_ended(namespace: Namespace) -> None:
    with KernelTable() as table, pytest.raises(BenchError, match="ended by itself"):
        table.wait_loaded(ADDRESSES, lambda: True, 30)


def test_a_changed_endpoint_is_told_of_in_our_layout(namespace: Namespace) -> None:
    with _ours() as proxy, Notices(namespace) as notices:
        began = time.perf_counter()
        proxy.apply(decoded(cluster.endpoint_slice(3, version=7)))
        (address,) = set(cluster.pods(3, version=7)) - set(cluster.pods(3))
        assert began < notices.wait(address, 20) < time.perf_counter()
        assert notices.seen().keys() & ENDPOINTS.keys() <= set(cluster.pods(3)), "what did not change is not told of"


def test_endpoints_are_told_of_in_kube_proxys_layout(namespace: Namespace) -> None:
    with Notices(namespace) as notices:
        _theirs(namespace)
        notices.wait(cluster.pods(0)[0], 20)
        assert notices.seen().keys() == ENDPOINTS.keys()


def test_what_does_not_come_is_not_waited_for_without_end(namespace: Namespace) -> None:
    with Notices(namespace) as notices, pytest.raises(BenchError, match=r"10\.64\.0\.1 did not come"):
        notices.wait("10.64.0.1", 0.2)


def test_the_listener_ends_with_its_statement(namespace: Namespace) -> None:
    with Notices(namespace) as notices:
        process = notices._process
        assert process.poll() is None
    assert process.poll() is not None


def test_the_listener_prints_one_line_for_each_transaction(namespace: Namespace) -> None:
    process = namespace.start(*own_process("bench.notices"), stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        _theirs(namespace)
        at, *addresses = process.stdout.readline().split()
        assert float(at) <= time.perf_counter()
        assert set(addresses) == ENDPOINTS.keys()
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()
