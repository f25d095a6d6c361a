"""Names of interfaces: what is accepted, nft takes; an asterisk takes one of the kernel's 15 characters."""

from pathlib import Path

import pytest

from netns.namespaces import CommandError, Namespace
from nodeproxy.cli import main as cli

from .support import call, words

PREFIX = ("--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix")
BRIDGE = ("--detect-local-mode=BridgeInterface", "--pod-bridge-interface")


def flags(kind: tuple[str, str], name: str) -> list[str]:
    mode, flag = kind
    return [mode, f"{flag}={name}"]


@pytest.mark.parametrize(
    ("kind", "name", "match"),
    [
        (PREFIX, "v", '"v*"'),
        (PREFIX, "veth-012345_.@", '"veth-012345_.@*"'),
        (PREFIX, "abcdefghijklmn", '"abcdefghijklmn*"'),
        (BRIDGE, "a", '"a"'),
        (BRIDGE, "abcdefghijklmno", '"abcdefghijklmno"'),
    ],
)
def test_name_that_is_accepted_is_taken_by_nft(
    kind: tuple[str, str], name: str, match: str, folder: Path, namespace: Namespace
) -> None:
    done = call(*words("render", folder, *flags(kind, name)))
    assert done.returncode == 0, done.stderr
    assert match in done.stdout
    namespace.nft(done.stdout)
    assert match in namespace.run("nft", "list", "ruleset")


@pytest.mark.parametrize("command", ["run", "render"])
def test_prefix_of_15_characters_is_refused_with_the_reason(command: str, folder: Path, namespace: Namespace) -> None:
    done = call(*words(command, folder, *flags(PREFIX, "abcdefghijklmno")))
    assert done.returncode == cli.USAGE
    assert done.stderr == (
        "nodeproxy: --pod-interface-name-prefix 'abcdefghijklmno': must have 14 characters at most\n"
    )
    assert namespace.run("nft", "list", "ruleset") == ""


def test_nft_takes_no_longer_prefix(folder: Path, namespace: Namespace) -> None:
    """So the bound is no stricter than it has to be."""
    text = call(*words("render", folder, *flags(PREFIX, "abcdefghijklmn"))).stdout
    assert "abcdefghijklmn*" in text
    with pytest.raises(CommandError, match="abcdefghijklmno"):
        namespace.nft(text.replace("abcdefghijklmn*", "abcdefghijklmno*"))
