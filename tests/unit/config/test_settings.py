"""Values of flags and files become settings, or a list of all that is wrong with them."""

import dataclasses
import socket

import pytest

from nodeproxy.config.durations import parse_duration
from nodeproxy.config.settings import ConfigError, RawConfig, validate
from nodeproxy.model.settings import ProxySettings
from nodeproxy.sync.runner import Intervals


def problems(**values: object) -> list[str]:
    """What is wrong with the defaults changed by ``values``."""
    with pytest.raises(ConfigError) as caught:
        validate(dataclasses.replace(RawConfig(), **values))  # type: ignore[arg-type]
    return caught.value.problems


def settings(**values: object) -> ProxySettings:
    return validate(dataclasses.replace(RawConfig(), **values)).settings  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("30s", 30.0),
        ("1m30s", 90.0),
        ("1h0m0s", 3600.0),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("100ms", 0.1),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("250μs", 0.00025),
        ("1000000000ns", 1.0),
        ("2h45m0.5s", 9900.5),
        ("-1s", -1.0),
        ("+1s", 1.0),
        ("  30s ", 30.0),
        ("1s1s", 2.0),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "30",
        "s",
        "1 s",
        "1d",
        "1h1",
        "x1s",
        "1s,",
        "--1s",
        "-",
        "+",
        "1e3s",
        "1,5s",
        "inf",
        "1.5.5s",
        ".s",
        "0x1s",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_duration_that_go_could_not_hold_is_refused() -> None:
    """Durations are 64-bit nanoseconds there, about 292 years; nothing here could wait longer either."""
    assert parse_duration("2562047h47m16s") == pytest.approx(9223372036.0)
    for text in ("2562048h", "9" * 400 + "h"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)


def test_defaults_are_those_of_kube_proxy() -> None:
    config = validate(RawConfig())
    assert config.settings == ProxySettings()
    assert config.settings.masquerade_bit == 14
    assert config.settings.detect_local_mode == "ClusterCIDR"
    assert config.intervals == Intervals(minimum=1.0, retry=30.0, maximum=3600.0)
    assert config.node_name == socket.gethostname().strip().lower()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hostname_override": ""}, ["--hostname-override", "blank"]),
        ({"hostname_override": " \t"}, ["--hostname-override", "blank"]),
        ({"bind_address": "nope"}, ["--bind-address", "'nope'"]),
        ({"bind_address": "10.0.0.0/8"}, ["--bind-address", "'10.0.0.0/8'"]),
        ({"bind_address": ""}, ["--bind-address"]),
        ({"cluster_cidr": "10.0.0.0"}, ["--cluster-cidr", "'10.0.0.0'"]),
        ({"cluster_cidr": "10.0.0.0/33"}, ["--cluster-cidr", "'10.0.0.0/33'"]),
        ({"cluster_cidr": "10.0.0.0/8,"}, ["--cluster-cidr"]),
        ({"cluster_cidr": "10.0.0.0/8,172.16.0.0/12"}, ["--cluster-cidr", "one of each family"]),
        ({"cluster_cidr": "10.0.0.0/8,fd00::/8,fd01::/16"}, ["--cluster-cidr", "one of each family"]),
        ({"detect_local_mode": "Other"}, ["--detect-local-mode", "'Other'", "NodeCIDR"]),
        ({"detect_local_mode": "BridgeInterface"}, ["--pod-bridge-interface", "must be given"]),
        ({"detect_local_mode": "InterfaceNamePrefix"}, ["--pod-interface-name-prefix", "must be given"]),
        ({"detect_local_mode": "BridgeInterface", "bridge_interface": 'x" drop'}, ["--pod-bridge-interface", "name"]),
        ({"detect_local_mode": "BridgeInterface", "bridge_interface": "x" * 16}, ["--pod-bridge-interface", "name"]),
        ({"interface_name_prefix": "a b"}, ["--pod-interface-name-prefix", "'a b'"]),
        ({"node_port_addresses": ("nope",)}, ["--nodeport-addresses", "'nope'", "primary"]),
        ({"node_port_addresses": ("10.0.0.1",)}, ["--nodeport-addresses", "'10.0.0.1'"]),
        ({"node_port_addresses": ("Primary",)}, ["--nodeport-addresses", "'Primary'"]),
        ({"masquerade_bit": -1}, ["--masquerade-bit", "-1", "31"]),
        ({"masquerade_bit": 32}, ["--masquerade-bit", "32"]),
        ({"sync_period": "0s"}, ["--sync-period", "positive"]),
        ({"sync_period": "-1s", "min_sync_period": "0"}, ["--sync-period", "-1s", "positive"]),
        ({"sync_period": "soon"}, ["--sync-period", "'soon'"]),
        ({"min_sync_period": "-1s"}, ["--min-sync-period", "negative"]),
        ({"min_sync_period": "31s"}, ["--min-sync-period", "31s", "30s"]),
        ({"min_sync_period": "1"}, ["--min-sync-period", "'1'"]),
        ({"endpoint_chains": "Never"}, ["--endpoint-chains", "'Never'", "Always"]),
    ],
)
def test_value_that_makes_no_sense_is_named_with_what_is_wrong(values: dict[str, object], words: list[str]) -> None:
    found = problems(**values)
    assert any(all(word in problem for word in words) for problem in found), found


def test_all_problems_are_named_at_once() -> None:
    found = problems(
        hostname_override=" ",
        bind_address="x",
        cluster_cidr="x",
        detect_local_mode="x",
        node_port_addresses=("x", "y"),
        masquerade_bit=99,
        sync_period="x",
        min_sync_period="y",
        endpoint_chains="x",
    )
    assert len(found) == 10
    with pytest.raises(ConfigError) as caught:
        validate(RawConfig(bind_address="x", masquerade_bit=99))
    assert str(caught.value).splitlines() == caught.value.problems
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"bind_address": "0.0.0.0"}, {"bind_address": ""}),  # noqa: S104  not bound to
        ({"bind_address": "::"}, {"bind_address": ""}),
        ({"bind_address": "0:0::0"}, {"bind_address": ""}),
        ({"bind_address": "192.000.002.001"}, {"bind_address": "192.0.2.1"}),
        ({"bind_address": "2001:DB8:0::1"}, {"bind_address": "2001:db8::1"}),
        ({"cluster_cidr": " "}, {"cluster_cidrs": ()}),
        ({"cluster_cidr": "10.1.2.3/8"}, {"cluster_cidrs": ("10.0.0.0/8",)}),
        ({"cluster_cidr": "fd00::/8, 10.0.0.0/8"}, {"cluster_cidrs": ("fd00::/8", "10.0.0.0/8")}),
        ({"detect_local_mode": ""}, {"detect_local_mode": "ClusterCIDR"}),
        ({"detect_local_mode": "NodeCIDR"}, {"detect_local_mode": "NodeCIDR"}),
        (
            {"detect_local_mode": "BridgeInterface", "bridge_interface": "cni0"},
            {"detect_local_mode": "BridgeInterface", "bridge_interface": "cni0"},
        ),
        (
            {"detect_local_mode": "InterfaceNamePrefix", "interface_name_prefix": "veth"},
            {"detect_local_mode": "InterfaceNamePrefix", "interface_name_prefix": "veth"},
        ),
        (
            {"node_port_addresses": ("primary", " all", "10.1.1.1/8", "10.0.0.0/8", "localhost")},
            {"node_port_addresses": ("primary", "all", "10.0.0.0/8", "localhost")},
        ),
        ({"masquerade_bit": 0, "masquerade_all": True}, {"masquerade_bit": 0, "masquerade_all": True}),
        ({"masquerade_bit": 31}, {"masquerade_bit": 31}),
        ({"endpoint_chains": "Always"}, {"endpoint_chains": "Always"}),
    ],
)
def test_values_are_brought_into_one_form(values: dict[str, object], expected: dict[str, object]) -> None:
    assert settings(**values) == dataclasses.replace(ProxySettings(), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"), [("Node-A", "node-a"), ("  node-b\n", "node-b"), ("10.0.0.1", "10.0.0.1")]
)
def test_node_name_is_trimmed_and_lower_case(given: str, expected: str) -> None:
    assert validate(RawConfig(hostname_override=given)).node_name == expected


def test_node_name_is_the_hosts_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Worker-7.Example.ORG")
    assert validate(RawConfig()).node_name == "worker-7.example.org"


@pytest.mark.parametrize("blank", ["", " \t"])
def test_host_without_a_name_is_an_error_that_names_the_flag(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    """A Node of that name can't exist, so nothing would be local and nothing would say why."""
    monkeypatch.setattr(socket, "gethostname", lambda: blank)
    (problem,) = problems()
    assert problem.startswith("--hostname-override: ")
    assert validate(RawConfig(hostname_override="node-a")).node_name == "node-a"


@pytest.mark.parametrize(
    ("sync", "minimum", "expected"),
    [
        ("30s", "0s", Intervals(0.0, 30.0)),
        ("5s", "5s", Intervals(5.0, 5.0)),
        ("1m30s", "500ms", Intervals(0.5, 90.0)),
    ],
)
def test_periods_become_intervals(sync: str, minimum: str, expected: Intervals) -> None:
    assert validate(RawConfig(sync_period=sync, min_sync_period=minimum)).intervals == expected
