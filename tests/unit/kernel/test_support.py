"""What the machine has to have: versions, features one by one, IPv6."""

from pathlib import Path

import pytest

from nodeproxy.kernel import support
from nodeproxy.kernel.errors import PermissionDeniedError, TransactionError, UnsupportedError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import (
    SKIP_KERNEL_CHECK,
    check_features,
    check_kernel,
    check_libnftables,
    check_support,
    deletes_freely,
    ipv6_usable,
    version_tuple,
)
from nodeproxy.kube.addresses import Family
from nodeproxy.ruleset.render import RenderContext, Renderer

PROBE = Renderer(RenderContext(Family.IPV4)).probe()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.9.8", (0, 9, 8)),
        ("1.0.6 (Lester Gooch #5)", (1, 0, 6)),
        ("nftables v1.1.3 (Commodore Bullmoose #4)", (1, 1, 3)),
        ("6.18.44-fc-v657", (6, 18, 44)),
        ("5.10.0-28-amd64", (5, 10, 0)),
        ("garbage", ()),
        ("7", ()),
        ("", ()),
    ],
)
def test_version_is_read_out_of_its_text(text: str, expected: tuple[int, ...]) -> None:
    assert version_tuple(text) == expected


@pytest.mark.parametrize("version", ["1.0.1", "1.0.6 (Lester Gooch #5)", "1.1.3", "2.0", "10.0.0"])
def test_libnftables_that_is_new_enough_passes(version: str) -> None:
    check_libnftables(version)


@pytest.mark.parametrize(("version", "freely"), [("1.0.6", False), ("1.0.9", False), ("1.1.0", True), ("1.1.3", True)])
def test_libnftables_reads_all_chains_before_it_deletes_or_does_not(version: str, freely: bool) -> None:
    assert deletes_freely(version) is freely


@pytest.mark.parametrize("version", ["0.9.8", "1.0", "1.0.0", "garbage", ""])
def test_libnftables_that_is_too_old_or_unknown_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"libnftables 1\.0\.1 or later .*" + (version or "unknown")):
        check_libnftables(version)


@pytest.mark.parametrize("release", ["5.13", "5.13.0-rc1", "6.18.44-fc", "10.0"])
def test_kernel_that_is_new_enough_passes(release: str) -> None:
    check_kernel(release, {})


@pytest.mark.parametrize("release", ["5.12", "5.12.19-generic", "4.19.0", "garbage", ""])
def test_kernel_that_is_too_old_or_unknown_is_refused_unless_told_to_go_on(release: str) -> None:
    with pytest.raises(UnsupportedError, match=r"Linux 5\.13 or later .*" + (release or "unknown")) as caught:
        check_kernel(release, {})
    assert SKIP_KERNEL_CHECK in str(caught.value)
    with pytest.raises(UnsupportedError):
        check_kernel(release, {SKIP_KERNEL_CHECK: ""})
    check_kernel(release, {SKIP_KERNEL_CHECK: "1"})


class Lacking(Nft):
    """A kernel that refuses statements with certain words, as it does without the module that brings them."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.words = words

    def check(self, text: str) -> None:
        for line in text.splitlines():
            if any(word in line for word in self.words):
                raise TransactionError("Could not process rule: No such file or directory", statement=line)

    def run(self, text: str) -> None:
        raise AssertionError("probing applies nothing")


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("fib", ["fib", "nft_fib"]),
        ("ct state", ["connection tracking", "nft_ct"]),
        ("reject", ["reject", "nft_reject"]),
        ("masquerade", ["masquerading", "nft_masq"]),
        ("numgen", ["random choice", "nft_numgen"]),
    ],
)
def test_missing_feature_and_its_module_are_named_and_no_other(word: str, names: list[str]) -> None:
    """ENOENT for a statement may mean a missing module: the message says which (B08)."""
    with pytest.raises(UnsupportedError) as caught:
        check_features(Lacking(word), PROBE)
    message = str(caught.value)
    assert all(name in message for name in names)
    assert message.startswith("the kernel lacks ")
    assert message.count("(nft_") == 1
    assert ";" not in message
    assert "No such file or directory" in message


def test_all_missing_features_are_named_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_features(Lacking("fib", "numgen"), PROBE)
    message = str(caught.value)
    assert "(nft_fib_ipv4): " in message
    assert "nft_numgen" in message
    assert message.count("(nft_") == 2


def test_kernel_without_nftables_says_so() -> None:
    with pytest.raises(UnsupportedError, match="the kernel lacks"):
        check_features(Lacking("add table"), PROBE)


def test_missing_permission_is_not_taken_for_a_missing_feature() -> None:
    class Forbidden(Lacking):
        def check(self, text: str) -> None:
            raise PermissionDeniedError("no")

    with pytest.raises(PermissionDeniedError):
        check_features(Forbidden(), PROBE)


@pytest.mark.usefixtures("namespace")
def test_this_machine_has_it_all_and_nothing_is_left_of_the_probe() -> None:
    nft = Nft()
    assert version_tuple(check_support(nft, PROBE)) >= support.MINIMUM_LIBNFTABLES
    code, output, _ = nft._ours().cmd("list tables")
    assert (code, output) == (0, "")


@pytest.mark.usefixtures("namespace")
def test_old_kernel_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "MINIMUM_KERNEL", (99, 0))
    monkeypatch.delenv(SKIP_KERNEL_CHECK, raising=False)
    with pytest.raises(UnsupportedError, match="Linux"):
        check_support(Lacking(), PROBE)
    monkeypatch.setenv(SKIP_KERNEL_CHECK, "yes")
    check_support(Nft(), PROBE)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, False),
        ({"net/if_inet6": ""}, True),
        ({"net/if_inet6": "", "sys/net/ipv6/conf/all/disable_ipv6": "0\n"}, True),
        ({"net/if_inet6": "", "sys/net/ipv6/conf/all/disable_ipv6": "1\n"}, False),
        ({"sys/net/ipv6/conf/all/disable_ipv6": "0\n"}, False),
    ],
)
def test_ipv6_is_usable_if_the_kernel_has_it_and_it_is_on(tmp_path: Path, files: dict[str, str], usable: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ipv6_usable(tmp_path) is usable
