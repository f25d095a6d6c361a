"""The control plane is a real one: its controllers, its admission, its permissions, its memory of versions."""

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster.api import Api, ApiError, Object
from cluster.commands import ADDRESS, DNS_NAME, PORT
from cluster.control_plane import ControlPlane
from netns.namespaces import Namespace

_PATIENCE = 40.0
_KINDS = ("Service", "EndpointSlice", "Node", "ServiceCIDR")


def await_(look: Callable[[], Any], what: str) -> Any:
    """Whatever ``look`` gives, once that is true."""
    end = time.monotonic() + _PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, f"not within {_PATIENCE:.0f} s: {what}"
        time.sleep(0.1)
    return found


@pytest.fixture
def place(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.new_namespace() as name:
        yield name


@contextlib.contextmanager
def _node(plane: ControlPlane, name: str, zone: str) -> Iterator[Object]:
    labels = {"topology.kubernetes.io/zone": zone}
    made = plane.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    try:
        yield made
    finally:
        plane.api.delete(made)


def _service(namespace: str, name: str, **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"app": name},
            "ports": [{"port": 80, "targetPort": 8080}],
            "ipFamilyPolicy": "RequireDualStack",
        },
    }


def _deployment(namespace: str, name: str, node: str, replicas: int) -> Object:
    pod = {"nodeName": node, "containers": [{"name": "web", "image": "web"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        },
    }


def _make_ready(api: Api, pod: Object, *addresses: str) -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    ips = [{"ip": address} for address in addresses]
    api.patch_status(pod, {"phase": "Running", "podIP": addresses[0], "podIPs": ips, "conditions": conditions})


def _ready(api: Api, namespace: str, service: str, family: str) -> set[str]:
    found = api.list("EndpointSlice", namespace, labelSelector=f"kubernetes.io/service-name={service}")
    return {
        address
        for slice_ in found["items"]
        if slice_["addressType"] == family
        for endpoint in slice_["endpoints"] or []
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    }


def test_it_has_the_version_that_go_mod_names(control_plane: ControlPlane) -> None:
    """The version is stamped into the server and into kubectl: version skew checks depend on it."""
    said = control_plane.kubectl("version").splitlines()
    assert f"Client Version: {control_plane.programs.version}" in said
    assert f"Server Version: {control_plane.programs.version}" in said


def test_a_deployments_ready_pods_become_endpoints_in_both_families(control_plane: ControlPlane, place: str) -> None:
    """Pods that a Deployment's controllers made and a test made ready are in EndpointSlices, with their node's zone."""
    api = control_plane.api
    with _node(control_plane, f"node-of-{place}", "zone-a") as node:
        api.create(_service(place, "web"))
        api.create(_deployment(place, "web", node["metadata"]["name"], replicas=2))
        pods = await_(lambda: (found := api.list("Pod", place)["items"])[1:] and found, "two Pods")
        for number, pod in enumerate(pods, 1):
            _make_ready(api, pod, f"10.180.0.{number}", f"fd00:10:180::{number}")
        await_(lambda: _ready(api, place, "web", "IPv4") == {"10.180.0.1", "10.180.0.2"}, "IPv4 endpoints")
        await_(lambda: _ready(api, place, "web", "IPv6") == {"fd00:10:180::1", "fd00:10:180::2"}, "IPv6 endpoints")
        first = api.list("EndpointSlice", place)["items"][0]["endpoints"][0]
        assert (first["nodeName"], first["zone"]) == (node["metadata"]["name"], "zone-a")

        api.delete(pods[0], grace=0)
        await_(lambda: _ready(api, place, "web", "IPv4") == {"10.180.0.2"}, "the deleted Pod's endpoint gone")
        await_(lambda: len(api.list("Pod", place)["items"]) == 2, "another Pod in its place")


def test_a_services_endpoint_slices_go_with_it(control_plane: ControlPlane, place: str) -> None:
    """Garbage collection works: what belongs to a deleted object is deleted."""
    api = control_plane.api
    made = api.create(_service(place, "web"))
    await_(lambda: api.list("EndpointSlice", place)["items"], "EndpointSlices")
    api.delete(made)
    await_(lambda: not api.list("EndpointSlice", place)["items"], "EndpointSlices gone")


def test_admission_policies_are_enforced(control_plane: ControlPlane, place: str) -> None:
    """A ValidatingAdmissionPolicy with a binding turns down what it says."""
    api = control_plane.api
    version = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}
    condition = {"expression": "object.metadata.?labels.?forbidden.orValue('') == ''", "message": "forbidden by a test"}
    policy = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"policy-{place}"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [condition]},
    }
    binding = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"policy-{place}"},
        "spec": {"policyName": f"policy-{place}", "validationActions": ["Deny"]},
    }

    def refused() -> str:
        try:
            api.delete(api.create(_service(place, "labelled", forbidden="yes")))
        except ApiError as error:
            return f"{error.code}: {error}"
        return ""

    try:
        api.load([policy, binding], connections=1)
        said = await_(refused, "the policy is in force")
        assert said.startswith("422")
        assert "forbidden by a test" in said
        api.create(_service(place, "allowed"))
    finally:
        api.delete(binding)
        api.delete(policy)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_agents_user_may_list_and_watch_what_it_needs(control_plane: ControlPlane, kind: str) -> None:
    agent = control_plane.client()
    version = agent.list(kind)["metadata"]["resourceVersion"]
    assert [event for event in agent.watch(kind, version, seconds=1) if event["type"] == "ERROR"] == []


def test_the_agents_user_may_do_nothing_else(control_plane: ControlPlane, place: str) -> None:
    agent, api = control_plane.client(), control_plane.api
    service = api.create(_service(place, "web"))
    with _node(control_plane, f"node-of-{place}", "zone-a") as node:
        attempts: list[Callable[[], object]] = [
            lambda: agent.list("Secret"),
            lambda: agent.list("Pod"),
            lambda: agent.get("ConfigMap", "kube-root-ca.crt", place),
            lambda: agent.create(_service(place, "other")),
            lambda: agent.replace(service),
            lambda: agent.patch(service, {"metadata": {"labels": {"a": "b"}}}),
            lambda: agent.patch_status(service, {"loadBalancer": {}}),
            lambda: agent.delete(service),
            lambda: agent.patch(node, {"metadata": {"labels": {"a": "b"}}}),
            lambda: agent.delete(node),
        ]
        for attempt in attempts:
            with pytest.raises(ApiError, match="Forbidden") as refusal:
                attempt()
            assert refusal.value.code == 403


def test_kube_proxys_user_has_kube_proxys_role(control_plane: ControlPlane) -> None:
    user = control_plane.client("kube-proxy")
    for kind in _KINDS:
        user.list(kind)
    with pytest.raises(ApiError, match="Forbidden"):
        user.list("Secret")


def test_tokens_expire_when_they_should(control_plane: ControlPlane) -> None:
    """A token that is good for a moment is refused soon after (the API server remembers good ones for 10 s)."""
    brief = control_plane.client(token=control_plane.token(seconds=8))
    lasting = control_plane.client(token=control_plane.token(seconds=600))
    brief.list("Service")

    def refused() -> int:
        try:
            brief.list("Service")
        except ApiError as error:
            return error.code
        return 0

    assert await_(refused, "the token is refused") == 401
    lasting.list("Service")


def test_a_kubeconfig_may_name_a_file_with_the_token(control_plane: ControlPlane) -> None:
    file = control_plane.folder / "token-of-the-agent"
    file.write_text(control_plane.token())
    config = control_plane.kubeconfig_for("nodeproxy", token=file)
    assert "kubernetes" in control_plane.kubectl(f"--kubeconfig={config}", "get", "services", "--all-namespaces")
    file.write_text("wrong")
    with pytest.raises(RuntimeError, match="Unauthorized"):
        control_plane.kubectl(f"--kubeconfig={config}", "get", "services", "--all-namespaces")


@pytest.mark.parametrize("address", ADDRESS)
def test_what_is_attached_reaches_the_server(control_plane: ControlPlane, address: str) -> None:
    """A namespace on the bridge reaches it by either family, and its certificate is good for both."""
    namespace = Namespace("node")
    with contextlib.closing(namespace):
        mine = control_plane.attach(namespace, name="control")
        token = control_plane.token()
        with contextlib.closing(Api(namespace, address, PORT, control_plane.ca, token)) as api:
            assert api.list("Service")["items"]
        assert namespace.run("ip", "-brief", "addr", "show", "dev", "control").split()[2] == f"{mine[0]}/16"


def test_its_certificate_has_a_name(control_plane: ControlPlane) -> None:
    with control_plane.namespace.enter():
        plain = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
        plain.connect()
    context = ssl.create_default_context(cafile=str(control_plane.ca))
    with plain.sock as raw, context.wrap_socket(raw, server_hostname=DNS_NAME) as connection:
        assert connection.version() is not None


def test_versions_from_before_a_compaction_and_a_restart_are_gone(control_plane: ControlPlane, place: str) -> None:
    """A watch from such a version is told so by 410, and one from a new list goes on."""
    api = control_plane.api
    old = api.list("Service")["metadata"]["resourceVersion"]
    api.delete(api.create(_service(place, "passing")))
    assert [event["type"] for event in api.watch("Service", old, place, seconds=1)][:1] == ["ADDED"]
    assert control_plane.compact_etcd() > int(old)
    control_plane.restart_apiserver()

    def told() -> int:
        try:
            events = list(api.watch("Service", old, place, seconds=1))
        except ApiError as error:
            return error.code
        return int(events[0]["object"]["code"]) if events and events[0]["type"] == "ERROR" else 0

    assert told() == 410
    new = api.list("Service")["metadata"]["resourceVersion"]
    api.create(_service(place, "later"))
    later = next(event for event in api.watch("Service", new, place, seconds=10) if event["type"] == "ADDED")
    assert later["object"]["metadata"]["name"] == "later"


def test_a_killed_server_breaks_connections_and_comes_back_with_all_it_had(
    control_plane: ControlPlane, place: str
) -> None:
    api = control_plane.api
    before = api.create(_service(place, "web"))
    version = before["metadata"]["resourceVersion"]
    ended = threading.Event()

    def watch() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for _ in api.watch("Service", version, place, seconds=60):
                pass
        ended.set()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    pid = control_plane.apiserver.pid
    control_plane.stop_apiserver(kill=True)
    assert ended.wait(20)
    watcher.join()
    with pytest.raises(OSError, match="refused"):
        api.list("Service")
    control_plane.start_apiserver()
    assert control_plane.apiserver.pid != pid
    assert api.get("Service", "web", place) == before


def test_without_controllers_nothing_is_made_until_they_are_back(control_plane: ControlPlane, place: str) -> None:
    api = control_plane.api
    control_plane.stop_controllers()
    try:
        api.create(_service(place, "web"))
        time.sleep(2)
        assert api.list("EndpointSlice", place)["items"] == []
    finally:
        control_plane.start_controllers()
    await_(lambda: api.list("EndpointSlice", place)["items"], "EndpointSlices")


def test_many_objects_are_created_over_several_connections(control_plane: ControlPlane, place: str) -> None:
    """All are there after it; and if one is refused, that is raised."""

    def config(number: int) -> Object:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"many-{number}", "namespace": place}}

    api = control_plane.api
    assert api.load(config(number) for number in range(60)) == 60
    found = {item["metadata"]["name"] for item in api.list("ConfigMap", place)["items"]}
    assert {f"many-{number}" for number in range(60)} <= found
    with pytest.raises(ApiError) as refusal:
        api.load([config(60), config(7), config(61)], connections=2)
    assert (refusal.value.code, refusal.value.reason) == (409, "AlreadyExists")


def test_kubectl_applies_what_it_is_given(control_plane: ControlPlane, place: str) -> None:
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(_service(place, "applied")))
    assert control_plane.api.get("Service", "applied", place)["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
