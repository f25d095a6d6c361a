"""A small cluster in memory, the proxy of one family on it, and what the kernel then holds."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from netns.namespaces import Namespace
from nodeproxy.kernel.nft import Nft
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.decode import API_VERSIONS, decode
from nodeproxy.kube.objects import KINDS
from nodeproxy.kube.source import Change, ObjectKey, Problem
from nodeproxy.model.frontends import Clash
from nodeproxy.model.node import node_view
from nodeproxy.model.service import ServicePortName
from nodeproxy.model.settings import ProxySettings
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.ruleset.render import TEMPLATES
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.proxier import Proxier
from nodeproxy.sync.store import Changes, Store

NODE = "node-a"
V4, V6 = Family.IPV4, Family.IPV6
PODS = {Family.IPV4: "10.244.0.", Family.IPV6: "fd00:244::"}
SERVICES = {Family.IPV4: "10.96.0.", Family.IPV6: "fd00:96::"}
TABLE_FAMILY = {Family.IPV4: "ip", Family.IPV6: "ip6"}


def change(kind: str, name: str, namespace: str = "", **fields: Any) -> Change:
    """An object as a source would hand it over."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    decoded = decode({"apiVersion": API_VERSIONS[kind], "kind": kind, "metadata": metadata, **fields}, "test")
    assert decoded.key is not None
    assert decoded.object is not None, decoded.problems
    return Change(decoded.key, decoded.object)


def gone(kind: str, name: str, namespace: str = "ns") -> Change:
    return Change(ObjectKey(kind, namespace, name), None)


def service(
    name: str,
    host: int = 10,
    *,
    family: Family = Family.IPV4,
    created: str = "2024-01-01T00:00:00Z",
    labels: dict[str, str] | None = None,
    vips: Sequence[str] = (),
    **spec: Any,
) -> Change:
    """A Service with ClusterIP number ``host`` and TCP port 80; what ``spec`` says comes on top."""
    body = {
        "type": "ClusterIP",
        "clusterIP": f"{SERVICES[family]}{host}",
        "ports": [{"port": 80, "protocol": "TCP"}],
        **spec,
    }
    metadata = {"creationTimestamp": created, **({"labels": labels} if labels else {})}
    status = {"loadBalancer": {"ingress": [{"ip": vip} for vip in vips]}}
    return change("Service", name, "ns", metadata=metadata, spec=body, status=status)


def sticky(name: str, host: int = 10, seconds: int = 100, **spec: Any) -> Change:
    """A Service with ClientIP affinity."""
    return service(
        name,
        host,
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": seconds}},
        **spec,
    )


def endpoints(
    of: str | None,
    hosts: Sequence[int],
    *,
    name: str = "",
    family: Family = Family.IPV4,
    node: str = NODE,
    zones: Sequence[str] = (),
    protocol: str = "TCP",
    port: int = 8080,
    port_name: str = "",
) -> Change:
    """A slice of a Service (None: of none) with a ready endpoint for each of ``hosts``."""
    metadata = {"labels": {"kubernetes.io/service-name": of}} if of else {}
    hints = {"hints": {"forZones": [{"name": zone} for zone in zones]}} if zones else {}
    found = [{"addresses": [f"{PODS[family]}{host}"], "nodeName": node, **hints} for host in hosts]
    return change(
        "EndpointSlice",
        name or f"{of}-1",
        "ns",
        metadata=metadata,
        addressType=family.label,
        ports=[{"name": port_name, "port": port, "protocol": protocol}],
        endpoints=found,
    )


def node(
    *, zone: str = "", addresses: Sequence[str] = ("192.0.2.1", "2001:db8::1"), pod_cidrs: Sequence[str] = ()
) -> Change:
    """The Node that the proxy runs on."""
    return change(
        "Node",
        NODE,
        metadata={"labels": {"topology.kubernetes.io/zone": zone}} if zone else {},
        spec={"podCIDRs": list(pod_cidrs)},
        status={"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
    )


def service_cidr(*cidrs: str, name: str = "kubernetes") -> Change:
    return change("ServiceCIDR", name, spec={"cidrs": list(cidrs)})


def shop(family: Family = V4) -> list[Change]:
    """Services of every form, and their endpoints."""
    external = {V4: "198.51.100.7", V6: "2001:db8:1::7"}[family]
    vip = {V4: "198.51.100.8", V6: "2001:db8:1::8"}[family]
    ranges = {V4: ["203.0.113.0/24", "203.0.113.64/26"], V6: ["2001:db8:2::/48"]}[family]
    local = {"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}
    shapes = [
        (service("none", 1, family=family, ports=[{"port": 80, "nodePort": 30001}], type="NodePort"), []),
        (service("one", 2, family=family), [1]),
        (service("many", 3, family=family, externalIPs=[external]), [1, 2, 3]),
        (sticky("sticky", 4, family=family), [2, 3]),
        (sticky("sticky-one", 5, family=family), [4]),
        (
            service(
                "balanced",
                6,
                family=family,
                type="LoadBalancer",
                ports=[{"port": 80, "nodePort": 30006}],
                vips=[vip],
                loadBalancerSourceRanges=ranges,
                **local,
            ),
            [1, 5],
        ),
    ]
    found = [node(), service_cidr("10.96.0.0/16", "fd00:96::/112")]
    for shape, hosts in shapes:
        found += [shape, endpoints(shape.key.name, hosts, family=family)]
    remote = service("remote", 7, family=family, type="NodePort", ports=[{"port": 80, "nodePort": 30007}], **local)
    return [*found, remote, endpoints("remote", [6, 7], family=family, node="node-b")]


def statements(texts: list[str]) -> list[str]:
    """All statements of transactions, without those that declare the table."""
    return [line for text in texts for line in text.splitlines() if line and not line.startswith("add table")]


class FakeClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wait(self, event: object, timeout: float) -> None:
        raise AssertionError("nothing here waits")


class SilentJournal(Journal):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[SyncResult] = []
        self.tidying_failures: list[Exception] = []
        self.warned: list[tuple[str, dict[str, object]]] = []
        self.last_clashes: tuple[Clash, ...] = ()
        self.last_unmatched: dict[ServicePortName, Sequence[str]] = {}
        self.last_ignored_hints: dict[ServicePortName, str] = {}
        self.advised: list[list[str]] = []

    def synced(self, result: SyncResult) -> None:
        self.results.append(result)

    def warning(self, event: str, **values: object) -> None:
        self.warned.append((event, values))

    def tidying_failed(self, family: Family, error: Exception) -> None:
        self.tidying_failures.append(error)

    def clashes(self, family: Family, clashes: Sequence[Clash]) -> None:
        self.last_clashes = tuple(clashes)

    def unmatched(self, family: Family, unmatched: Mapping[ServicePortName, Sequence[str]]) -> None:
        self.last_unmatched = dict(unmatched)

    def ignored_hints(self, family: Family, ignored: Mapping[ServicePortName, str]) -> None:
        self.last_ignored_hints = dict(ignored)

    def advice(self, sentences: Iterable[str]) -> None:
        self.advised.append(list(sentences))


class WatchedNft(Nft):
    """Keeps the text of every transaction, and may be told to interfere with the next ones.

    Attributes:
        texts: transactions that the kernel took.
        before: is called with the text before it is applied; may raise.
        after: is called with the text after it was applied; may raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    def run(self, text: str) -> None:
        self.before(text)
        super().run(text)
        self.texts.append(text)
        self.after(text)

    def taken(self) -> list[str]:
        """The transactions since the last call."""
        found, self.texts = self.texts, []
        return found


class Once:
    """Raises an error the first time it is called."""

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    def __call__(self, _: str) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def spent(self) -> bool:
        return self._error is None


class Cluster:
    """Objects, as a source described them."""

    def __init__(self, *changes: Change) -> None:
        self.problems: list[Sequence[Problem]] = []
        self.store = Store(lambda: None, self.problems.append)
        self.store.apply(changes)
        for kind in KINDS:
            self.store.complete(kind)

    def apply(self, *changes: Change) -> Changes:
        self.store.apply(changes)
        return self.store.take()

    def surroundings(self, family: Family, present: Sequence[str] = ()) -> Surroundings:
        found = node_view(self.store.node(NODE), NODE)
        return Surroundings(found, self.store.service_cidrs(family), tuple(present))


class Table:
    """The proxy of one family, on a cluster of its own or a given one.

    It works in the namespace that the thread is in when it first syncs.
    """

    def __init__(
        self,
        *changes: Change,
        family: Family = Family.IPV4,
        cluster: Cluster | None = None,
        settings: ProxySettings | None = None,
        full_every: float = 3600.0,
        templates: Path = TEMPLATES,
        refill: bool = True,
    ) -> None:
        self.family = family
        self.templates = templates
        self.cluster = cluster or Cluster(node(), *changes)
        self.nft, self.journal, self.clock = WatchedNft(), SilentJournal(), FakeClock()
        self.settings = settings or ProxySettings(cluster_cidrs=("10.244.0.0/16", "fd00:244::/64"))
        self.planner = Planner(family, self.settings, self.cluster.store.view, templates)
        self.proxier = Proxier(self.planner, self.nft, self.journal, self.clock, full_every, refill=refill)
        self.cluster.store.take()
        self._present = ("192.0.2.1", "2001:db8::1")
        self.move()

    def move(self, *changes: Change, present: Sequence[str] | None = None) -> None:
        """Take changes and new surroundings, without a sync."""
        taken = self.cluster.apply(*changes)
        self.proxier.update(taken.services)
        if present is not None:
            self._present = tuple(present)
        self.proxier.move(self.cluster.surroundings(self.family, self._present), self.cluster.store.everything)

    def sync(self, *changes: Change) -> list[str]:
        """Take changes, sync, and return the transactions."""
        self.proxier.update(self.cluster.apply(*changes).services)
        self.proxier.sync()
        return self.nft.taken()

    def tidy(self) -> list[str]:
        """Let time pass until nothing is left to tidy, and return the transactions."""
        for _ in range(10):
            due = self.proxier.tidy_due()
            if due is None:
                return self.nft.taken()
            self.clock.time = max(self.clock.time, due)
            self.proxier.tidy()
        raise AssertionError("tidying does not end")

    def again(self) -> "Table":
        """Another run of the program, on the same cluster and kernel."""
        return Table(cluster=self.cluster, family=self.family, settings=self.settings, templates=self.templates)

    @property
    def last(self) -> SyncResult:
        return self.journal.results[-1]


def view(family: Family) -> dict[str, Any]:
    """What the kernel's table does, as ``nft`` lists it, in a form in which slots and digests do not matter.

    Keys are ``chain NAME`` (hook, and rules with the values of their slots in place of the slots), ``set NAME`` and
    ``map NAME`` (declaration and elements). Slot maps are left out.
    """
    objects = json.loads(listing(family, "-j"))["nftables"]
    elements: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for item in objects:
        for kind in ("set", "map"):
            if kind in item:
                body = item[kind]
                content = sorted((_element(e) for e in body.get("elem", [])), key=repr)
                elements[body["name"]] = dict(content) if kind == "map" else content
                if not body["name"].startswith(("endpoints-", "endpoint-chains-")):
                    declared = {k: v for k, v in body.items() if k not in {"handle", "elem", "family", "table"}}
                    found[f"{kind} {body['name']}"] = (declared, content)
    for item in objects:
        if "chain" in item:
            body = item["chain"]
            hook = [body.get(key) for key in ("type", "hook", "prio")]
            found[f"chain {body['name']}"] = (hook, [])
    for item in objects:
        if "rule" in item:
            found[f"chain {item['rule']['chain']}"][1].append(_resolved(item["rule"]["expr"], elements))
    return found


def _element(element: Any) -> tuple[str, Any]:
    key, value = element if isinstance(element, list) and len(element) == 2 else (element, None)
    if isinstance(key, dict) and "elem" in key:
        key = key["elem"]["val"]
    return json.dumps(key), value


def _resolved(expression: Any, elements: dict[str, Any]) -> Any:
    """An expression, with what a random choice from slots chooses from in place of the slots."""
    if isinstance(expression, list):
        return [_resolved(item, elements) for item in expression]
    if not isinstance(expression, dict):
        return expression
    for kind in ("map", "vmap"):
        body = expression.get(kind)
        shared = isinstance(body, dict) and isinstance(body.get("data"), str)  # not another program's anonymous map
        if shared and isinstance(body.get("key"), dict) and "numgen" in body["key"]:
            numgen, slots = body["key"]["numgen"], elements[body["data"].removeprefix("@")]
            offset = numgen.get("offset", 0)
            values = [slots[json.dumps(offset + i)] for i in range(numgen["mod"])]
            return {kind: sorted(values, key=repr)}  # all are drawn alike, whatever their order
    return {key: _resolved(value, elements) for key, value in expression.items()}


def listing(family: Family, *flags: str) -> str:
    """``nft list table`` of the namespace that the thread is in."""
    return run("nft", *flags, "list", "table", TABLE_FAMILY[family], "kube-proxy")


def run(*argv: str, text: str | None = None) -> str:
    """Run a command in the namespace that the thread is in, and return its output."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def expected(table: Table) -> dict[str, Any]:
    """What the kernel would hold if the proxy were started on an empty one now."""
    other = Namespace("expected")
    try:
        with other.enter():
            Table(cluster=table.cluster, family=table.family, settings=table.settings).sync()
            return view(table.family)
    finally:
        other.close()
