"""Performance: what is sent, read and cut into pieces, in numbers that no slow machine changes."""

import random
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel import netlink
from nodeproxy.kernel.netlink import NftSocket, attributes, number
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Change
from nodeproxy.model.settings import EndpointChains, ProxySettings
from nodeproxy.ruleset import diff
from nodeproxy.ruleset.operations import Operation, weight
from nodeproxy.ruleset.render import TABLE
from unit.sync.support import NODE, V4, V6, Table, change, endpoints, expected, gone, run, statements, view

pytestmark = pytest.mark.usefixtures("namespace")

families = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])
PODS_ON_NODE = 250


def cluster_ip(index: int, family: Family = V4) -> str:
    return f"10.96.{index >> 8}.{index & 255}" if family is V4 else f"fd00:96::{index:x}"


def pod(index: int, family: Family = V4) -> str:
    return f"10.244.0.{index % PODS_ON_NODE + 1}" if family is V4 else f"fd00:244::{index % PODS_ON_NODE + 1:x}"


def one(index: int, count: int = 10, *, family: Family = V4, turn: int = 0, affinity: bool = False) -> list[Change]:
    """Service number ``index`` and its endpoints, other ones each ``turn``."""
    name = f"s{index:05}"
    spec: dict[str, Any] = {"clusterIP": cluster_ip(index + 1, family), "ports": [{"port": 80, "protocol": "TCP"}]}
    if affinity:
        spec["sessionAffinity"] = "ClientIP"
    found = [{"addresses": [pod(index + turn * count + each, family)], "nodeName": NODE} for each in range(count)]
    return [
        change("Service", name, "ns", spec=spec),
        change(
            "EndpointSlice",
            f"{name}-1",
            "ns",
            metadata={"labels": {"kubernetes.io/service-name": name}},
            addressType=family.label,
            ports=[{"name": "", "port": 8080, "protocol": "TCP"}],
            endpoints=found,
        ),
    ]


def many(count: int, each: int = 10, **options: Any) -> list[Change]:
    return [object_ for index in range(count) for object_ in one(index, each, **options)]


def set_flags(family: Family = V4) -> list[int]:
    """The flags of all sets and maps of our table, those without a name included."""
    with NftSocket(family) as sock:
        found = [attributes(item) for item in sock.dump(netlink.GET_SET, {1: TABLE})]
    return [number(item[3]) if 3 in item else 0 for item in found]


# --- C01: no map a Service --------------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("chains", ["WhenAffinity", "Always"])
@pytest.mark.parametrize("each", [1, 3])
def test_c01_number_of_maps_does_not_grow_with_services(family: Family, chains: EndpointChains, each: int) -> None:
    """kubernetes/kubernetes#139513, #139878, #140723: a map a Service, each of which the kernel walked for each rule.

    No rule has a map of its own, whatever the number of endpoints: the slots of all share few maps.
    """
    settings = ProxySettings(cluster_cidrs=("10.244.0.0/16", "fd00:244::/64"), endpoint_chains=chains)
    counts = []
    for services in (50, 250):
        table = Table(*many(services, each, family=family), family=family, settings=settings)
        table.sync()
        assert table.proxier.refused() == {}
        flags = set_flags(family)
        anonymous = 0x1
        assert not any(flag & anonymous for flag in flags)
        counts.append(len(flags))
    added = 200 * each if each > 1 else 0  # slots; a single endpoint needs none
    room = 126 if chains == "Always" else 1024  # 42 Services of three in a map of 128; 750 slots fit into one of 1,024
    assert counts[1] - counts[0] <= added // room + 1
    assert chains == "Always" or counts[0] == counts[1]


def test_c01_anonymous_map_would_be_noticed(namespace: Namespace) -> None:
    """kubernetes/kubernetes#139513: the layout that grows worse than linearly shows in the kernel's list of sets."""
    namespace.nft(
        f"add table ip {TABLE}\nadd chain ip {TABLE} c\n"
        f"add rule ip {TABLE} c numgen random mod 2 vmap {{ 0 : accept, 1 : drop }}\n"
    )
    assert [flag & 0x1 for flag in set_flags()] == [1]


# --- C02: a first load in pieces --------------------------------------------------------------------------------------


class Weighing:
    """Keeps what each transaction weighs, as pieces are bounded by it.

    Attributes:
        weights: one a transaction.
    """

    def __init__(self, table: Table) -> None:
        self.weights: list[int] = []
        renderer = table.planner.renderer
        real = renderer.transaction

        def transaction(operations: list[Operation], *arguments: Any, **options: Any) -> str:
            self.weights.append(weight(operations))
            return real(operations, *arguments, **options)

        renderer.transaction = transaction  # type: ignore[method-assign, assignment]


def test_c02_first_load_is_cut_into_transactions_of_bounded_size() -> None:
    """kubernetes/kubernetes#139328, #139546: one giant transaction held the lock that all users of nftables wait for.

    The biggest transaction of 1,500 Services is no bigger than that of 500, and the first one is not the last.
    """
    largest, counts, bytes_ = [], [], []
    for services in (500, 1500):
        table = Table(*many(services))
        weighing = Weighing(table)
        texts = table.sync()
        assert len(texts) == len(weighing.weights)
        largest.append(max(weighing.weights))
        bytes_.append(max(map(len, texts)))
        counts.append(len(texts))
        run("nft", "delete", "table", "ip", TABLE)
    assert max(largest) <= diff.PIECE_WEIGHT + 20, "a Service is not cut"
    assert bytes_[1] < bytes_[0] * 1.3  # names and numbers have more digits
    assert 2 * counts[0] < counts[1] < 4 * counts[0]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few Services are cut as thousands are."""
    monkeypatch.setattr(diff, "PIECE_WEIGHT", 50)


@pytest.fixture
def servers(namespace: Namespace) -> Iterator[None]:
    """All pods' addresses are on this machine, and answer with their own address; ClusterIPs have a way."""
    namespace.ip(["addr add 10.244.0.0/24 dev lo", "route add 10.96.0.0/16 dev lo src 10.244.0.0"])
    listener = socket.create_server(("0.0.0.0", 8080), backlog=200)  # noqa: S104  in a namespace of its own
    listener.settimeout(0.1)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.sendall(connection.getsockname()[0].encode())

    thread = threading.Thread(target=serve, name="pods")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)
        listener.close()


def answer(index: int) -> str:
    """Which pod answers at a Service's ClusterIP.

    Raises:
        OSError: nobody does.
    """
    with socket.create_connection((cluster_ip(index + 1), 80), timeout=5) as connection:
        return connection.recv(100).decode()


@pytest.mark.usefixtures("small_pieces", "servers")
def test_c02_each_state_between_the_pieces_serves_what_is_dispatched_already() -> None:
    """kubernetes/kubernetes#139328: leaves first, dispatch last; after each transaction, connections are made.

    A Service whose element is in is served by its own endpoints, from the moment on that it is in.
    """
    services, endpoints_each = 120, 5
    table = Table(*many(services, endpoints_each))
    draw = random.Random(1)  # noqa: S311  nothing secret
    dispatched: list[int] = []
    states: list[int] = []

    def look(text: str) -> None:
        for address in re.findall(r"^10\.96\.(\d+\.\d+) \. tcp \. 80.* : goto service-", text, re.MULTILINE):
            high, _, low = address.partition(".")
            dispatched.append(int(high) * 256 + int(low) - 1)
        states.append(len(dispatched))
        for index in {*dispatched[-2:], *draw.sample(dispatched, min(3, len(dispatched)))}:
            assert answer(index) in {pod(index + each) for each in range(endpoints_each)}

    table.nft.after = look
    table.sync()
    assert sorted(dispatched) == [*range(services)]
    assert len(states) > 8
    assert states[0] == 0, "nothing is dispatched to what is not there"
    assert len(set(states)) > 3, "it is not all put into force at once, either"


@pytest.mark.usefixtures("small_pieces", "servers")
def test_c02_big_change_fails_nobody_between_its_pieces() -> None:
    """kubernetes/kubernetes#139328: all endpoints change; after each transaction every Service has old or new ones."""
    services, endpoints_each = 60, 4
    table = Table(*many(services, endpoints_each))
    table.sync()
    draw = random.Random(2)  # noqa: S311  nothing secret
    seen = {"old": 0, "new": 0}

    def look(_: str) -> None:
        for index in draw.sample(range(services), 6):
            old = {pod(index + each) for each in range(endpoints_each)}
            new = {pod(index + endpoints_each + each) for each in range(endpoints_each)}
            found = answer(index)
            assert found in old | new
            seen["old" if found in old else "new"] += 1

    table.nft.after = look
    texts = table.sync(*many(services, endpoints_each, turn=1))
    assert len(texts) > 5
    assert not table.last.full
    assert min(seen.values()) > 0
    table.nft.after = lambda _: None
    table.tidy()
    assert view(V4) == expected(table)


# --- C04: a change costs what it changes ------------------------------------------------------------------------------

CHANGES: dict[str, list[Change]] = {
    "endpoints": one(7, turn=1),
    "one endpoint less": one(7, 9),
    "service gone": [gone("Service", "s00007"), gone("EndpointSlice", "s00007-1")],
    "new service": one(5000),
    "affinity": one(7, affinity=True),
}


def shape(texts: list[str]) -> str:
    """What is sent, but for numbers and hashes: which slots are free is no matter of size."""
    without_hashes = re.sub(r"-[A-Z2-7]{8}-|#[a-z2-7]{8}", "-", "\n".join(texts))
    return re.sub(r"\d+", "N", without_hashes)


def test_c04_change_of_one_service_sends_the_same_whatever_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#126013: with 10,000 Services, adding one sent all of them anew, and took minutes.

    Among 1,000 Services a change sends as many statements and as much text as among 100, and reads nothing.
    """
    sent: dict[str, list[list[str]]] = {}
    for services in (100, 1000):
        table = Table(*many(services))
        table.sync()
        opened = []
        real = NftSocket.__init__

        def counted(self: NftSocket, family: Family, real: Any = real, opened: list[Family] = opened) -> None:
            opened.append(family)
            real(self, family)

        with monkeypatch.context() as patched:
            patched.setattr(NftSocket, "__init__", counted)
            for name, changes in CHANGES.items():
                texts = table.sync(*changes)
                assert not table.last.full
                assert len(table.last.changed) == 1
                texts += table.tidy()
                sent.setdefault(name, []).append(texts)
                table.sync(*one(7), gone("Service", "s05000"), gone("EndpointSlice", "s05000-1"))
                table.tidy()
        assert opened == [], "nothing is read back"
        run("nft", "delete", "table", "ip", TABLE)
    for name, (few, lots) in sent.items():
        assert shape(few) == shape(lots), name
        assert len(statements(few)) <= 75, name
        size = sum(map(len, few)), sum(map(len, lots))
        assert abs(size[0] - size[1]) <= 120, f"{name}: only numbers have more digits"
        assert max(size) < 12_000, name


def test_c04_change_that_changes_nothing_sends_nothing() -> None:
    """kubernetes/kubernetes#126013: an object that says the same, or endpoints in another order, cost nothing."""
    table = Table(*many(50))
    table.sync()
    hosts = [int(pod(3 + each).rpartition(".")[2]) for each in range(10)]
    assert table.sync(endpoints("s00003", hosts[::-1], name="s00003-1")) == []
    assert table.sync(*one(4)) == []
    assert table.last.transactions == 0
