"""Whether this machine has what the rules need: kernel, libnftables, and the kernel's features one by one."""

import faulthandler
import os
import re
import resource
import warnings
from pathlib import Path

from nodeproxy.kernel.errors import TransactionError, UnsupportedError
from nodeproxy.kernel.nft import Nft
from nodeproxy.ruleset.render import Probe

MINIMUM_KERNEL = (5, 13)
MINIMUM_LIBNFTABLES = (1, 0, 1)
STEADY_LIBNFTABLES = (1, 1)
"""From here on, libnftables does not crash on what other programs keep in nftables."""
FREELY_DELETING_LIBNFTABLES = (1, 1)
"""From here on, libnftables does not read all chains of the kernel before it deletes an element."""
SKIP_KERNEL_CHECK = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK"


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``1.0.6 (Lester Gooch #5)`` is ``(1, 0, 6)``; () if there are none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def check_kernel(release: str, environment: dict[str, str]) -> None:
    """Check the kernel's release, as ``uname -r`` states it.

    Raises:
        UnsupportedError: it is older than 5.13 and the environment does not say to go on.
    """
    version = version_tuple(release)
    if version >= MINIMUM_KERNEL or environment.get(SKIP_KERNEL_CHECK):
        return
    msg = f"Linux 5.13 or later is needed, this is {release or 'unknown'} (set {SKIP_KERNEL_CHECK}=1 to go on anyway)"
    raise UnsupportedError(msg)


def check_libnftables(version: str) -> None:
    """Check the version that libnftables states.

    Raises:
        UnsupportedError: it is older than 1.0.1, or says nothing that can be read.
    """
    if version_tuple(version) >= MINIMUM_LIBNFTABLES:
        return
    msg = f"libnftables 1.0.1 or later is needed, this is {version or 'of unknown version'}"
    raise UnsupportedError(msg)


def deletes_freely(version: str) -> bool:
    """Whether to delete an element costs this libnftables no more than to add one."""
    return version_tuple(version) >= FREELY_DELETING_LIBNFTABLES


def check_steady(version: str, text: str) -> None:
    """Have a process of its own check a transaction first, if libnftables may crash on it.

    Before most transactions libnftables 1.0.6 reads the sets of all tables, and crashes on some that nft 1.1.2 and
    later make, such as those of ``type ifname`` (kubernetes/kubernetes#136786). This process would end without a word.

    Args:
        version: what libnftables states of itself.
        text: the transaction; nothing is applied.

    Raises:
        UnsupportedError: it crashes.
    """
    if version_tuple(version) >= STEADY_LIBNFTABLES:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child only calls libnftables, and ends
        child = os.fork()
    if child == 0:
        _try_and_end(text)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        msg = (
            f"libnftables {version or 'of unknown version'} crashes (signal {os.WTERMSIG(status)}) while it looks at "
            "what other programs keep in nftables here; libnftables 1.1 or later is needed beside them"
        )
        raise UnsupportedError(msg)


def _try_and_end(text: str) -> None:
    """Have a transaction checked, and end the process, whatever comes of it."""
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        Nft().check(text)
    finally:
        os._exit(0)  # whatever it was that was refused, the parent will find as well


def check_features(nft: Nft, probe: Probe) -> None:
    """Have the kernel check one statement of each kind that the rules use; nothing is applied.

    Raises:
        UnsupportedError: names the features that are missing, and the modules that would bring them.
        PermissionDeniedError: CAP_NET_ADMIN is missing.
    """
    try:
        nft.check(_whole(probe))
    except TransactionError:
        missing = [
            f"{feature}: {reason}"
            for statement, feature in probe.features
            if (reason := _refusal(nft, "\n".join((*probe.ground, statement, ""))))
        ]
        msg = "the kernel lacks " + ("; ".join(missing) or "nftables")
        raise UnsupportedError(msg) from None


def _whole(probe: Probe) -> str:
    return "\n".join((*probe.ground, *(statement for statement, _ in probe.features), ""))


def _refusal(nft: Nft, text: str) -> str:
    try:
        nft.check(text)
    except TransactionError as error:
        return error.reason
    return ""


def check_support(nft: Nft, probe: Probe) -> str:
    """Check all of it.

    Returns:
        libnftables' version.

    Raises:
        UnsupportedError: something is missing; the message is a sentence that says what.
        PermissionDeniedError: CAP_NET_ADMIN is missing.
    """
    check_kernel(os.uname().release, dict(os.environ))
    version = nft.version()
    check_libnftables(version)
    check_steady(version, _whole(probe))
    check_features(nft, probe)
    return version


def ipv6_usable(root: Path = Path("/proc")) -> bool:
    """Whether the kernel has IPv6 and it is not switched off."""
    if not (root / "net/if_inet6").exists():
        return False
    try:
        return (root / "sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() != "1"
    except OSError:
        return True
