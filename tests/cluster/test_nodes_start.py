"""On a node with kube-proxy's rules: they stay until everything is known, and proxies take each other's over."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.api import Object
from cluster.control_plane import ControlPlane
from cluster.nodes.live import LINK, LiveAgent, cut_off
from cluster.processes import Keeper
from cluster.programs import Programs
from cluster.record.kube_proxy import kube_proxy
from cluster.record.recorder import load
from layouts.services import hashed
from netns.addresses import FAMILIES
from netns.namespaces import Namespace
from netns.recorded import RELEASES, TARGET, Release, recording
from netns.takeover_rows import ROWS, STICKY
from netns.takeover_traffic import SteadyClients, expect_fates
from netns.world import Node, World

pytestmark = pytest.mark.timeout(240)

LONG = 3.0
"""Seconds for which nothing is to happen."""
_RBAC = "rbac.authorization.k8s.io"
DIFFERENCES = Path(__file__).resolve().parents[2] / "docs" / "differences.md"
NEEDED = {"services": "", "endpointslices": "discovery.k8s.io", "nodes": ""}
OPTIONAL = {"servicecidrs": "networking.k8s.io"}


@dataclass(frozen=True, slots=True)
class Ground:
    """A cluster with the objects of the recordings, and node-a attached to it."""

    plane: ControlPlane
    world: World
    keeper: Keeper

    @property
    def node(self) -> Node:
        """The node with rules."""
        return self.world.node("node-a")

    def agent(self, kubeconfig: Path, folder: Path) -> LiveAgent:
        """An agent for it."""
        return LiveAgent(self.node, kubeconfig, self.keeper, folder)


@pytest.fixture(scope="module")
def loaded_plane(cluster_programs: Programs) -> Iterator[ControlPlane]:
    """A control plane with the objects of the recordings."""
    with ControlPlane(cluster_programs) as plane:
        with World(nodes=2, pods=3) as world:
            load(plane, world)
        yield plane


@pytest.fixture
def ground(loaded_plane: ControlPlane) -> Iterator[Ground]:
    """The ground, without rules."""
    with World(nodes=2, pods=3) as world, contextlib.ExitStack() as stack:
        world.serve_pods(TARGET)
        keeper = Keeper()
        stack.callback(keeper.close)
        loaded_plane.attach(world.node("node-a"), name=LINK)
        yield Ground(loaded_plane, world, keeper)


def _rules(namespace: Namespace) -> str:
    """Every table with every handle, but how long clients stay with their endpoints."""
    return namespace.run("nft", "-s", "-a", "list", "ruleset")


def _expect_taken_over(agent: LiveAgent) -> None:
    agent.wait_logged("took_over=", count=len(FAMILIES), timeout=60)
    time.sleep(LONG / 2)
    assert len(agent.logged("took_over=")) == len(FAMILIES)


@pytest.mark.parametrize("release", RELEASES)
def test_rules_stay_while_the_api_server_is_out_of_reach(ground: Ground, tmp_path: Path, release: Release) -> None:
    """Not a byte of kube-proxy's tables changes and everybody is served, until the API server can be reached."""
    namespace = ground.node.namespace
    recording(release).load(namespace)
    before = _rules(namespace)
    with SteadyClients(ground.world, ROWS | STICKY) as clients:
        with cut_off(ground.plane), ground.agent(ground.plane.kubeconfig_for(), tmp_path) as agent:
            agent.wait_logged("started")
            time.sleep(LONG)
            agent.program.check()
            assert _rules(namespace) == before
        with agent:
            _expect_taken_over(agent)
            clients.traffic.wait_round()
    clients.expect_nothing_happened(rejects_for_drops=release == "1.31")


@pytest.mark.parametrize("missing", [*NEEDED, *OPTIONAL])
def test_rules_stay_while_something_may_not_be_listed(ground: Ground, tmp_path: Path, missing: str) -> None:
    """Without permission on Services, EndpointSlices or Nodes nothing is written; once it is given, all is.

    ServiceCIDRs are another matter: API servers may not have them.
    """
    namespace = ground.node.namespace
    recording("1.37").load(namespace)
    before = _rules(namespace)
    with _user(ground.plane, missing) as (kubeconfig, allow), SteadyClients(ground.world, ROWS | STICKY) as clients:
        with ground.agent(kubeconfig, tmp_path) as agent:
            if missing in NEEDED:
                agent.wait_logged(missing, "403")
                time.sleep(LONG)
                agent.program.check()
                assert _rules(namespace) == before
                allow()
            _expect_taken_over(agent)
        clients.traffic.wait_round()
    clients.expect_nothing_happened()


@contextlib.contextmanager
def _user(plane: ControlPlane, missing: str) -> Iterator[tuple[Path, "Allow"]]:
    """A ServiceAccount that may not list one kind of objects, and what allows it to."""
    name = f"without-{missing}"
    account = {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}
    role = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    binding = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    role_ref = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}
    items: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "kube-system"}},
        role | {"rules": _rules_for({kind: group for kind, group in (NEEDED | OPTIONAL).items() if kind != missing})},
        binding | {"roleRef": role_ref, "subjects": [account]},
    ]
    for item in items:
        plane.api.create(item)
    try:
        yield plane.kubeconfig_for(f"kube-system:{name}"), Allow(plane, role)
    finally:
        for item in items:
            plane.api.delete(item)


def _rules_for(resources: dict[str, str]) -> list[Object]:
    return [
        {"apiGroups": [group], "resources": [kind], "verbs": ["list", "watch"]} for kind, group in resources.items()
    ]


@dataclass(frozen=True, slots=True)
class Allow:
    """Lets a role list everything that an agent wants."""

    plane: ControlPlane
    role: Object

    def __call__(self) -> None:
        """Do so."""
        self.plane.api.patch(self.role, {"rules": _rules_for(NEEDED | OPTIONAL)})


def test_proxies_take_turns(ground: Ground, tmp_path: Path, cluster_programs: Programs) -> None:
    """kube-proxy, nodeproxy, kube-proxy and nodeproxy again on one node, the rules of each left to the next.

    Nobody who connects notices, long connections go on, and clients with affinity stay with their endpoints.
    """
    namespace, program = ground.node.namespace, cluster_programs.kube_proxy
    rival = kube_proxy(program, ground.plane.kubeconfig, ground.node, tmp_path)
    with rival:
        expect_fates(ground.world, ROWS)
    with SteadyClients(ground.world, ROWS | STICKY) as clients:
        clients.traffic.wait_round()
        with ground.agent(ground.plane.kubeconfig_for(), tmp_path) as agent:
            _expect_taken_over(agent)
            clients.traffic.wait_round()
        with kube_proxy(program, ground.plane.kubeconfig, ground.node, tmp_path):
            clients.traffic.wait_round()
        assert "numgen random mod 3 map {" in namespace.run("nft", "list", "table", "ip", "kube-proxy")
        with ground.agent(ground.plane.kubeconfig_for(), tmp_path) as agent:
            agent.wait_logged("took_over=", count=2 * len(FAMILIES), timeout=60)
            clients.traffic.wait_round()
    clients.expect_nothing_happened()


def test_kube_proxy_that_is_back_gets_rid_of_what_is_out_of_use(
    ground: Ground, tmp_path: Path, cluster_programs: Programs
) -> None:
    """With the documented clean-up of slot maps: chains of endpoints that go are deleted, and nothing is refused."""
    namespace, api = ground.node.namespace, ground.plane.api
    with ground.agent(ground.plane.kubeconfig_for(), tmp_path) as agent:
        agent.wait_logged("synced", count=len(FAMILIES))
    chain = f"endpoint-{hashed('test/sticky/tcp/p80__10.180.2.10/8080')}"
    (command,) = re.findall(r"^   ```sh\n(.*?)^   ```$", DIFFERENCES.read_text(), re.DOTALL | re.MULTILINE)
    with kube_proxy(cluster_programs.kube_proxy, ground.plane.kubeconfig, ground.node, tmp_path) as rival:
        namespace.run("bash", "-euo", "pipefail", "-c", command)
        maps = namespace.run("nft", "list", "maps")
        assert "service-ips" in maps
        assert "endpoints-" not in maps
        assert "endpoint-chains-" not in maps
        expect_fates(ground.world, ROWS)
        assert chain in namespace.run("nft", "list", "chains")
        whole = api.get("EndpointSlice", "sticky-v4", "test")
        try:
            # It deletes chains in the first sync that comes more than a second after the one that stopped using them.
            api.patch(whole, {"endpoints": whole["endpoints"][:2]})
            deadline = time.monotonic() + 30
            while chain in namespace.run("nft", "list", "chains"):
                assert time.monotonic() < deadline, rival.tail()
                time.sleep(1.5)
                api.patch(whole, {"endpoints": whole["endpoints"][: 1 + int(time.monotonic()) % 2]})
        finally:
            api.patch(whole, {"endpoints": whole["endpoints"]})
        assert "Unable to delete" not in rival.log.read_text()
