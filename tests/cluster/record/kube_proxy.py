"""The real kube-proxy on a node of a test world, in nftables mode, with the flags that the agent of the tests has."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.processes import Deadline, Keeper, Program
from netns.agent import CLUSTER_CIDR, TABLE
from netns.namespaces import CommandError, Namespace
from netns.world import Node

NFT_FAMILIES = ("ip", "ip6")
_PATIENCE = 60.0
# A child namespace may not set all of them, and kube-proxy ends when it can't.
_NO_SYSCTLS = (
    "--conntrack-max-per-core=0",
    "--conntrack-min=0",
    "--conntrack-tcp-timeout-established=0s",
    "--conntrack-tcp-timeout-close-wait=0s",
)


@contextlib.contextmanager
def kube_proxy(program: Path, kubeconfig: Path, node: Node, folder: Path) -> Iterator[Program]:
    """A kube-proxy that has written its rules; it is ended afterwards, its rules stay.

    Args:
        program: kube-proxy.
        kubeconfig: a user who may list and watch what it wants; the server is reached from the node.
        node: where it runs.
        folder: for its log.

    Raises:
        cluster.processes.ProgramError: it ended by itself, or had not written its rules in time.
    """
    argv = (
        program,
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node.name}",
        "--proxy-mode=nftables",
        CLUSTER_CIDR,
        "--iptables-min-sync-period=0s",
        # Not at 10249 and 10256, which are among the ports that clients of the tests start from.
        "--healthz-bind-address=127.0.0.1:9256",
        "--metrics-bind-address=127.0.0.1:9249",
        *_NO_SYSCTLS,
    )
    with contextlib.ExitStack() as stack:
        keeper = Keeper()
        stack.callback(keeper.close)
        running = Program("kube-proxy", keeper, node.namespace, argv, folder)
        stack.callback(running.stop)
        before = {family: _handles(node.namespace, family) for family in NFT_FAMILIES}
        running.start()
        deadline = Deadline(_PATIENCE, "both families have no rules of it", running)
        while any(_handles(node.namespace, family) in (set(), before[family]) for family in NFT_FAMILIES):
            deadline.pause()
        while len(set(_looks(node.namespace))) > 1:
            deadline.pause("they still change")
        yield running


def _looks(namespace: Namespace) -> Iterator[str]:
    """Some listings of both tables, a moment apart; times to live left out."""
    for _ in range(3):
        yield "".join(namespace.run("nft", "-s", "list", "table", family, TABLE) for family in NFT_FAMILIES)
        time.sleep(0.5)


def _handles(namespace: Namespace, family: str) -> set[str]:
    """The handles of the rules that dispatch, written anew by every start; empty if there are none."""
    with contextlib.suppress(CommandError):
        listed = namespace.run("nft", "-a", "list", "chain", family, TABLE, "services")
        return set(re.findall(r"vmap @service-.* # handle (\d+)", listed))
    return set()
