"""``nodeproxy render``: the rules on standard output, and on standard error what is not as one would think."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from netns.namespaces import Namespace
from nodeproxy.cli.main import main

from .support import call, start, words

CLUSTER = "--cluster-cidr=10.244.0.0/16,fd00:244::/64"


def write(folder: Path, name: str, *documents: dict[str, Any]) -> None:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))


def service(
    name: str, spec: dict[str, Any], labels: dict[str, str] | None = None, created: str = "2024-01-01T00:00:00Z"
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop", "labels": labels or {}, "creationTimestamp": created}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--endpoint-chains=Always", "--masquerade-all"),
        ("--cluster-cidr=10.244.0.0/16,fd00:244::/64", "--nodeport-addresses=all"),
        ("--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"),
    ],
)
def test_rendered_rules_are_accepted_by_nft(
    namespace: Namespace, folder: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(words("render", folder, *flags)) == 0
    shown = capsys.readouterr()
    can_tell = any("cidr" in flag or "prefix" in flag for flag in flags)
    remarks = [line.partition(" traffic of local pods can't be told")[0] for line in shown.err.splitlines()]
    assert remarks == ([] if can_tell else ["nodeproxy: IPv4", "nodeproxy: IPv6"])
    file = tmp_path / "rules.nft"
    file.write_text(shown.out)
    namespace.run("nft", "-c", "-f", str(file))
    namespace.run("nft", "-f", str(file))
    for table in ("ip", "ip6"):
        held = namespace.run("nft", "list", "table", table, "kube-proxy")
        assert "/shop/web/tcp/http" in held.replace("-shop", "/shop")
        assert "8080" in held


def test_rendering_needs_no_privilege_and_touches_no_kernel(namespace: Namespace, folder: Path) -> None:
    done = call(*words("render", folder, CLUSTER), prefix=["setpriv", "--bounding-set=-all", "--inh-caps=-all"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("table ip kube-proxy") >= 1
    assert namespace.run("nft", "list", "ruleset") == ""


@pytest.mark.parametrize(("family", "table", "other"), [("IPv4", "ip", "ip6"), ("IPv6", "ip6", "ip")])
def test_one_family_is_rendered_alone(
    folder: Path, family: str, table: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("render", folder, f"--family={family}")) == 0
    shown = capsys.readouterr().out
    assert f"table {table} kube-proxy" in shown
    assert f"table {other} kube-proxy" not in shown


def test_rendering_twice_gives_the_same_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(words("render", folder))
    first = capsys.readouterr().out
    main(words("render", folder))
    assert capsys.readouterr().out == first


def test_one_service_is_rendered_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of others, and no table of the family that it is not served in."""
    assert main(words("render", folder, "--service=shop/four")) == 0
    shown = capsys.readouterr().out
    assert "shop/four" in shown
    assert "10.96.0.11" in shown
    assert "shop/web" not in shown
    assert "chain services " not in shown
    assert "table ip6" not in shown


NOT_SERVED = {
    "headless": ({"clusterIP": "None"}, {}, "headless"),
    "external-name": ({"type": "ExternalName", "externalName": "example.org"}, {}, "type ExternalName"),
    "other-proxy": ({"clusterIP": "10.96.0.30"}, {"service.kubernetes.io/service-proxy-name": "x"}, "another proxy"),
    "no-cluster-ip": ({}, {}, "no ClusterIP"),
    "no-port": ({"clusterIP": "10.96.0.31", "ports": []}, {}, "no port"),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_service_that_is_not_served_ends_with_1_and_the_reason_is_said(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, labels, reason = NOT_SERVED[name]
    write(folder, name, service(name, {"ports": [{"port": 80}], **spec}, labels))
    assert main(words("render", folder, f"--service=shop/{name}")) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    last = shown.err.splitlines()[-1]
    assert last.startswith(f"nodeproxy: no rules for Service shop/{name}: ")
    assert reason in last


def test_service_that_is_missing_ends_with_1_and_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("render", folder, "--service=shop/nope")) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "nodeproxy: no rules for Service shop/nope: there is no such Service\n"


def test_service_without_an_address_of_the_family_ends_with_1_and_the_reason_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("render", folder, "--service=shop/four", "--family=IPv6")) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no ClusterIP of this family" in shown.err
    assert main(words("render", folder, "--service=shop/four")) == 0


@pytest.mark.parametrize("name", ["web", "/web", "shop/"])
def test_service_without_namespace_or_name_ends_with_2(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("render", folder, f"--service={name}")) == 2
    assert "NAMESPACE/NAME" in capsys.readouterr().err


def test_input_that_is_left_out_is_named_and_ends_with_1_and_the_rest_is_rendered(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a check of manifests before they are applied fails."""
    write(folder, "bad", service("bad", {"clusterIP": "10.96.0.999"}))
    (folder / "worse.yaml").write_text("{")
    assert main(words("render", folder, CLUSTER)) == 1
    shown = capsys.readouterr()
    assert "shop/four" in shown.out
    lines = shown.err.splitlines()
    assert all(line.startswith("nodeproxy: ") for line in lines)
    left_out = [line for line in lines if line.endswith(" (left out)")]
    assert len(left_out) == 2
    assert left_out[0].startswith("nodeproxy: bad.yaml#1: Service shop/bad: spec.clusterIP '10.96.0.999' ")
    assert left_out[1].startswith("nodeproxy: worse.yaml: ")


def test_input_that_is_taken_in_part_is_named_and_ends_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = service("part", {"clusterIP": "10.96.0.20", "externalIPs": ["junk"], "ports": [{"port": 80}]})
    write(folder, "part", part)
    assert main(words("render", folder, CLUSTER)) == 1
    shown = capsys.readouterr()
    assert shown.err == "nodeproxy: part.yaml#1: Service shop/part: spec.externalIPs[0] 'junk' is not an IP address\n"
    assert "shop/part" in shown.out


def test_input_that_is_read_unlike_it_was_written_is_named_and_ends_with_0(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left out."""
    write(folder, "odd", service("odd", {"clusterIP": "10.96.00.20", "ports": [{"port": 80}]}))
    assert main(words("render", folder, CLUSTER)) == 0
    assert "'10.96.00.20' was read as 10.96.0.20" in capsys.readouterr().err


def test_problems_come_in_the_order_of_documents_and_a_service_without_ports_is_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "many", *[service(f"s{n}", {"clusterIP": f"10.96.1.{n}"}) for n in range(1, 13)])
    write(folder, "none", service("headless", {"clusterIP": "None"}), service("else", {"type": "ExternalName"}))
    assert main(words("render", folder, CLUSTER)) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"nodeproxy: many.yaml#{n}: Service shop/s{n}: spec.ports is missing: the Service cannot be served"
        for n in range(1, 13)
    ]


def test_objects_of_other_kinds_are_counted_and_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web"}}
    write(folder, "others", *[{**deployment, "metadata": {"name": f"web-{n}"}} for n in range(3)], secret)
    assert main(words("render", folder, CLUSTER)) == 0
    shown = capsys.readouterr()
    assert shown.err == ("nodeproxy: ignored, being of other kinds: 3 apps/v1 Deployment, 1 v1 Secret\n")
    assert "shop/four" in shown.out


# --- remarks ---------------------------------------------------------------------------------------------------------


def test_frontend_that_another_service_has_is_remarked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"externalIPs": ["198.51.100.7"], "ports": [{"port": 80}]}
    for name, created, host in (("old", "2024-01-01T00:00:00Z", 21), ("young", "2024-02-02T00:00:00Z", 22)):
        write(folder, name, service(name, {"clusterIP": f"10.96.0.{host}", **shared}, created=created))
    remark = "nodeproxy: shop/young does not get 198.51.100.7:80/TCP: shop/old has it\n"
    assert main(words("render", folder, CLUSTER)) == 0
    assert capsys.readouterr().err == remark
    assert main(words("render", folder, "--service=shop/young")) == 0
    assert capsys.readouterr().err == remark
    for other in ("old", "web"):
        assert main(words("render", folder, f"--service=shop/{other}")) == 0
        assert capsys.readouterr().err == ""


def test_port_whose_slices_have_another_name_is_remarked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = service("wrong", {"clusterIP": "10.96.0.23", "ports": [{"name": "http", "port": 80}]})
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "wrong", "namespace": "shop", "labels": {"kubernetes.io/service-name": "wrong"}},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": 8080}],
        "endpoints": [{"addresses": ["10.244.0.9"]}],
    }
    write(folder, "wrong", wrong, endpoint_slice)
    remark = "nodeproxy: shop/wrong:http has no IPv4 endpoints: its slices have some for other ports: web TCP\n"
    assert main(words("render", folder, CLUSTER)) == 0
    assert capsys.readouterr().err == remark
    assert main(words("render", folder, "--service=shop/wrong")) == 0
    assert capsys.readouterr().err == remark
    assert main(words("render", folder, "--service=shop/web")) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "remark"),
    [
        ([], "no IPv4 cluster CIDR is given (--cluster-cidr)"),
        (["--hostname-override=node-x", CLUSTER], "there is no Node node-x"),
        (["--nodeport-addresses=198.18.0.0/15,2001:db8::/32", CLUSTER], "NodePorts are not served over IPv4"),
    ],
)
def test_what_may_not_be_meant_is_remarked_and_no_error(
    folder: Path, flags: list[str], remark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("render", folder, *flags)) == 0
    shown = capsys.readouterr()
    assert any(line.startswith("nodeproxy: ") and remark in line for line in shown.err.splitlines())
    assert "shop/web" in shown.out


def test_folder_without_a_service_is_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("render", tmp_path, CLUSTER)) == 0
    shown = capsys.readouterr()
    assert "nodeproxy: there is no Service at all: " in shown.err
    assert "chain services" in shown.out


# --- closed pipes ----------------------------------------------------------------------------------------------------


def test_reader_that_has_seen_enough_ends_it_without_a_traceback(folder: Path) -> None:
    """As `nodeproxy render | head -1` does; there is far more to write than a pipe holds."""
    many = [
        service(f"s{n}", {"clusterIP": f"10.97.{n // 250}.{n % 250}", "ports": [{"port": 80}]}) for n in range(1000)
    ]
    write(folder, "many", *many)
    with start(*words("render", folder, CLUSTER)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("table ip kube-proxy")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(20) == 1


def test_pipe_that_nobody_reads_ends_it_without_a_traceback(folder: Path) -> None:
    """There is so little to write that it only goes out at the end."""
    read, write_end = os.pipe()
    os.close(read)
    try:
        with start(*words("render", folder, "--service=shop/four"), stdout=write_end) as process:
            assert process.stderr is not None
            assert process.stderr.read() == ""
            assert process.wait(20) == 1
    finally:
        os.close(write_end)


# --- full disks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--service=shop/four",)], ids=["while writing", "at the end"])
def test_output_that_cannot_be_written_is_one_line_and_ends_with_1(folder: Path, flags: tuple[str, ...]) -> None:
    """As `nodeproxy render >/dev/full` does; a little only goes out at the end."""
    many = [
        service(f"s{n}", {"clusterIP": f"10.97.{n // 250}.{n % 250}", "ports": [{"port": 80}]}) for n in range(1000)
    ]
    write(folder, "many", *many)
    with (
        Path("/dev/full").open("w") as full,
        start(*words("render", folder, CLUSTER, *flags), stdout=full.fileno()) as p,
    ):
        assert p.stderr is not None
        assert p.stderr.read() == "nodeproxy: [Errno 28] No space left on device\n"
        assert p.wait(20) == 1
