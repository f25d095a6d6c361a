"""The commands as a person or a script calls them: what they print where, and how they end."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from netns.namespaces import Namespace
from nodeproxy.cli import main as cli
from nodeproxy.cli.flags import raw_config
from nodeproxy.cli.main import build_parser, main
from nodeproxy.config.settings import RawConfig
from nodeproxy.ruleset.render import TEMPLATES

from .support import call, words

BROKEN_MODULE = """\
class Nftables:
    cmd = cmd_from_file = set_dry_run = set_json_output = print

    def __init__(self):
        raise OSError("no .so")

    def __del__(self):
        self.nft_ctx_free(self.__ctx)
"""
COMMANDS = ("run", "render", "cleanup", "version")
# --- help and usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*COMMANDS, ""])
def test_help_goes_to_standard_output_and_ends_with_0(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"] if command else ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: nodeproxy {command}".rstrip())
    assert shown.err == ""
    if not command:
        assert all(re.search(rf"^    {name} ", shown.out, re.MULTILINE) for name in COMMANDS)
        assert all(re.search(rf"^  {code}  ", shown.out, re.MULTILINE) for code in range(6))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["render"],
        ["render", "--manifests=x", "--family=IPv5"],
        ["render", "--manifests=x", "--masquerade-bit=many"],
        ["run", "--manifests=x", "--logging-format=xml"],
        ["run", "--manifests=x", "--masquerade-all=maybe"],
        ["run", "--manifests=x", "-v"],
        ["run", "--manifests=x", "-v", "much"],
        ["version", "--loud"],
    ],
)
def test_usage_error_ends_with_2_and_says_why_on_standard_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == cli.USAGE == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error:" in shown.err


@pytest.mark.parametrize("command", ["render", "run"])
def test_flags_that_make_no_sense_end_with_2_and_are_all_named(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--masquerade-bit=32", "--cluster-cidr=10.0.0.0", "--detect-local-mode=Guess")
    assert main(words(command, folder, *flags)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    for line, flag in zip(sorted(lines), ("--cluster-cidr", "--detect-local-mode", "--masquerade-bit"), strict=True):
        assert line.startswith(f"nodeproxy: {flag}")


def test_run_says_how_to_name_the_api_server_if_nothing_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["run"]) == cli.NO_INPUT
    assert "--kubeconfig" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--kubeconfig=x", "--master=https://192.0.2.1:6443"])
def test_folder_and_api_server_cannot_both_be_the_source(
    folder: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words("run", folder, flag)) == cli.USAGE
    shown = capsys.readouterr().err
    assert "--manifests" in shown
    assert flag.partition("=")[0] in shown


def test_kubeconfig_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--kubeconfig={tmp_path}/none"]) == cli.NO_INPUT
    assert f"{tmp_path}/none" in capsys.readouterr().err


# --- flags -----------------------------------------------------------------------------------------------------------


def config(*flags: str) -> RawConfig:
    return raw_config(build_parser().parse_args(["run", "--manifests=x", *flags]))


def test_no_flags_mean_the_defaults() -> None:
    assert config() == RawConfig()


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--hostname-override=Node-A", {"hostname_override": "Node-A"}),
        ("--hostname-override=", {"hostname_override": ""}),
        ("--bind-address=192.0.2.1", {"bind_address": "192.0.2.1"}),
        ("--cluster-cidr=10.0.0.0/8,fd00::/8", {"cluster_cidr": "10.0.0.0/8,fd00::/8"}),
        ("--detect-local-mode=NodeCIDR", {"detect_local_mode": "NodeCIDR"}),
        ("--pod-bridge-interface=cni0", {"bridge_interface": "cni0"}),
        ("--pod-interface-name-prefix=veth", {"interface_name_prefix": "veth"}),
        ("--nodeport-addresses=primary,10.0.0.0/8", {"node_port_addresses": ("primary", "10.0.0.0/8")}),
        ("--nodeport-addresses=,", {"node_port_addresses": ()}),
        ("--masquerade-all", {"masquerade_all": True}),
        ("--masquerade-all=true", {"masquerade_all": True}),
        ("--masquerade-all=False", {"masquerade_all": False}),
        ("--masquerade-bit=3", {"masquerade_bit": 3}),
        ("--iptables-masquerade-bit=4", {"masquerade_bit": 4}),
        ("--sync-period=1m", {"sync_period": "1m"}),
        ("--iptables-sync-period=2m", {"sync_period": "2m"}),
        ("--min-sync-period=0s", {"min_sync_period": "0s"}),
        ("--iptables-min-sync-period=5s", {"min_sync_period": "5s"}),
        ("--endpoint-chains=Always", {"endpoint_chains": "Always"}),
    ],
)
def test_flags_become_values(flag: str, expected: dict[str, object]) -> None:
    found = config(*flag.split())
    assert found == RawConfig(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words_", "level"),
    [([], 0), (["-v", "2"], 2), (["-v=2"], 2), (["-v2"], 2), (["--v=2"], 2), (["--v", "10"], 10), (["-v=0"], 0)],
)
def test_v_takes_a_level_in_every_spelling(words_: list[str], level: int) -> None:
    """As components of Kubernetes take it, so that a DaemonSet's arguments can stay as they are."""
    assert build_parser().parse_args(["run", "--manifests=x", *words_]).v == level


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["render", "run"])
@pytest.mark.usefixtures("namespace")
def test_missing_folder_ends_with_5_and_is_named(tmp_path: Path, command: str) -> None:
    done = call(*words(command, tmp_path / "nope"))
    assert done.returncode == cli.NO_INPUT == 5
    assert done.stdout == ""
    assert str(tmp_path / "nope") in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = {
    "syntax": ("base.nft.j2", "{% if %}\n", "base.nft.j2:3:"),
    "unknown word": ("base.nft.j2", "{{ no_such_word }}\n", "base.nft.j2:3: 'no_such_word' is undefined"),
    "unknown filter": ("base.nft.j2", "{{ ip | nope }}\n", "base.nft.j2:3:"),
    "not a block": ("base.nft.j2", "something else\n", "base.nft.j2: expected the start"),
}


@pytest.mark.parametrize("command", ["render", "run"])
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.usefixtures("namespace")
def test_broken_template_ends_with_5_and_is_named_with_its_line(
    folder: Path, tmp_path: Path, command: str, case: str
) -> None:
    name, text, expected = BROKEN[case]
    copy = tmp_path / "templates"
    shutil.copytree(TEMPLATES, copy)
    original = (copy / name).read_text()
    (copy / name).write_text(f"{{#- one line\n    two lines -#}}\n{text}{original}")
    done = call(*words(command, folder, f"--templates={copy}"))
    assert done.returncode == 5, done.stderr
    assert done.stdout == ""
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["render", "run"])
@pytest.mark.usefixtures("namespace")
def test_missing_templates_end_with_5_and_are_named(folder: Path, tmp_path: Path, command: str) -> None:
    done = call(*words(command, folder, f"--templates={tmp_path / 'nope'}"))
    assert done.returncode == 5
    assert f"templates {tmp_path / 'nope'}: no such directory" in done.stderr


@pytest.mark.parametrize("command", ["render", "run"])
@pytest.mark.usefixtures("namespace")
def test_template_that_cannot_be_read_ends_with_5_at_the_start(folder: Path, tmp_path: Path, command: str) -> None:
    """Though no Service needs it yet: a program that runs and can't serve looks like one that serves."""
    templates = shutil.copytree(TEMPLATES, tmp_path / "templates")
    (templates / "balancing.nft.j2").write_text("\n{% if %}")
    done = call(*words(command, folder, f"--templates={templates}"))
    assert done.returncode == 5
    assert "balancing.nft.j2:2: " in done.stderr


def test_unknown_flag_shows_how_the_command_is_used(folder: Path) -> None:
    done = call(*words("render", folder, "--clustercidr=10.0.0.0/8"))
    assert done.returncode == 2
    assert done.stderr.startswith("usage: nodeproxy render ")
    assert done.stderr.endswith("nodeproxy render: error: unrecognized arguments: --clustercidr=10.0.0.0/8\n")


@pytest.mark.parametrize("flag", ["--masquerade-al", "--cluster=10.0.0.0/8"])
def test_flags_are_not_abbreviated(folder: Path, flag: str) -> None:
    """What is short for one flag today may be another one tomorrow."""
    assert call(*words("render", folder, flag)).returncode == 2


@pytest.mark.parametrize("level", ["-1", "1.5", "much"])
def test_level_of_the_log_is_a_whole_number(folder: Path, level: str) -> None:
    done = call(*words("run", folder, f"-v={level}"))
    assert done.returncode == 2
    assert "is not a whole number from 0 on" in done.stderr


@pytest.mark.parametrize("command", ["run", "cleanup"])
@pytest.mark.parametrize(
    ("module", "word"),
    [
        ("", "is not libnftables'"),
        ("Nftables = 5\n", "is not libnftables'"),
        ("class Nftables:\n    def cmd(self, text): return 0, '', ''\n", "is not libnftables'"),
        (BROKEN_MODULE, "no .so"),
    ],
    ids=["another module", "no class", "an incomplete copy", "no library"],
)
@pytest.mark.usefixtures("namespace")
def test_nftables_module_that_does_not_work_ends_with_3(
    folder: Path, tmp_path: Path, command: str, module: str, word: str
) -> None:
    (tmp_path / "nftables.py").write_text(module)
    done = call(*(words(command, folder) if command == "run" else [command]), modules=tmp_path)
    assert done.returncode == 3, done.stderr
    assert word in done.stderr
    assert done.stderr.count("\n") == 1, "and nothing else"


@pytest.mark.parametrize(("module", "word"), [("", "is not libnftables'"), (BROKEN_MODULE, "no .so")])
@pytest.mark.usefixtures("namespace")
def test_version_says_why_that_of_libnftables_is_unknown(tmp_path: Path, module: str, word: str) -> None:
    (tmp_path / "nftables.py").write_text(module)
    done = call("version", modules=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    last = done.stdout.splitlines()[-1]
    assert last.startswith("libnftables unknown (")
    assert word in last


@pytest.mark.parametrize("command", ["run", "cleanup"])
@pytest.mark.usefixtures("namespace")
def test_missing_capability_ends_with_4_and_is_named(folder: Path, command: str) -> None:
    arguments = words("run", folder) if command == "run" else [command]
    done = call(*arguments, prefix=["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"])
    assert done.returncode == cli.NO_PERMISSION == 4
    assert done.stdout == ""
    assert done.stderr == "nodeproxy: CAP_NET_ADMIN is needed to work with nftables\n", "and no line of a library"


@pytest.mark.parametrize(
    ("prefix", "flags", "kind", "word", "code"),
    [
        (["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"], [], "PermissionDeniedError", "CAP_", 4),
        ([], ["--masquerade-bit=32"], "ConfigError", "--masquerade-bit 32", 2),
        ([], ["--templates=/nonexistent"], "TemplateError", "/nonexistent", 5),
    ],
)
@pytest.mark.usefixtures("namespace")
def test_fatal_error_is_a_line_of_json_where_the_log_is(
    folder: Path, prefix: list[str], flags: list[str], kind: str, word: str, code: int
) -> None:
    done = call(*words("run", folder, "--logging-format=json", *flags), prefix=prefix)
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (line["event"], line["level"], line["kind"]) == ("failed", "error", kind)
    assert word in line["error"]
    assert line["timestamp"]


@pytest.mark.usefixtures("namespace")
def test_missing_folder_is_a_line_of_json_where_the_log_is(tmp_path: Path) -> None:
    done = call(*words("run", tmp_path / "nope", "--logging-format=json"))
    assert done.returncode == 5
    last = [json.loads(line) for line in done.stderr.splitlines()][-1]
    assert (last["event"], last["level"], last["kind"]) == ("failed", "error", "SourceError")
    assert str(tmp_path / "nope") in last["error"]


@pytest.mark.usefixtures("namespace")
def test_old_kernel_ends_with_3_and_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nodeproxy.kernel.support.MINIMUM_KERNEL", (99, 0))
    monkeypatch.delenv("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK", raising=False)
    monkeypatch.setattr("nodeproxy.cli.run.configure_logs", lambda *_, **__: None)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: set())
    monkeypatch.setattr("nodeproxy.cli.run.threading.Thread", _Idle)
    assert main(words("run", folder)) == cli.UNSUPPORTED == 3
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "Linux" in shown.err


class _Idle:
    """A thread that never runs: nobody is to take the test run's signals."""

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        pass


# --- version and cleanup ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("namespace")
def test_version_names_what_it_depends_on() -> None:
    done = call("version")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(lines) == ["nodeproxy", "python", "linux", "libnftables"]
    assert lines["linux"] == os.uname().release
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", lines["libnftables"])


@pytest.mark.usefixtures("namespace")
def test_version_needs_no_privilege() -> None:
    done = call("version", prefix=["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"])
    assert done.returncode == 0, done.stderr
    assert "libnftables unknown (CAP_NET_ADMIN" in done.stdout


def test_cleanup_removes_our_tables_only_and_may_be_run_again(namespace: Namespace) -> None:
    mine = "add table inet mine\nadd table inet kube-proxy\nadd table ip mine\n"
    namespace.nft("add table ip kube-proxy\nadd chain ip kube-proxy c\nadd table ip6 kube-proxy\n" + mine)
    for _ in range(2):
        done = call("cleanup")
        assert (done.returncode, done.stderr) == (0, "")
        assert "stop it first" in done.stdout, "or the rules come back, and it looks as if nothing had been done"
        assert sorted(namespace.run("nft", "list", "tables").splitlines()) == [
            "table inet kube-proxy",
            "table inet mine",
            "table ip mine",
        ]
