"""Where the proxies may differ: entries of docs/differences.md, and when each of them explains a difference."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.differential.fates import Fate
from cluster.differential.generate import RANGES_ANNOTATION
from cluster.differential.questions import Frontend, Question
from cluster.differential.settings import Settings
from netns.manifests import Manifest


@dataclass(frozen=True)
class Difference:
    """A flow that has another fate with each proxy.

    Attributes:
        question: the flow.
        service: the Service that it is for, as the API server has it; None: of none.
        settings: how both proxies are configured.
        theirs: what becomes of it with kube-proxy.
        ours: what becomes of it with nodeproxy.
    """

    question: Question
    service: Manifest | None
    settings: Settings
    theirs: Fate
    ours: Fate

    @property
    def ranges(self) -> list[str]:
        """The Service's source ranges."""
        return self.service["spec"].get("loadBalancerSourceRanges", []) if self.service else []

    @property
    def annotation(self) -> str:
        """The Service's source ranges in the annotation."""
        return self.service["metadata"].get("annotations", {}).get(RANGES_ANNOTATION, "") if self.service else ""

    @property
    def closed(self) -> bool:
        """Whether nodeproxy drops all of it."""
        return not self.ours.reached and self.ours.failures == {"dropped"}


@dataclass(frozen=True)
class Known:
    """A difference on purpose.

    Attributes:
        entry: the first column of its row in docs/differences.md.
        explains: whether it is the reason for a difference.
    """

    entry: str
    explains: Callable[[Difference], bool]


def _closed_in_a_family_without_ranges(found: Difference) -> bool:
    own = [one for one in found.ranges if (":" in one) == (found.question.family == 6)]
    return found.question.frontend is Frontend.VIP and bool(found.ranges) and not own and found.closed


def _ranges_in_the_annotation(found: Difference) -> bool:
    return found.question.frontend is Frontend.VIP and not found.ranges and bool(found.annotation) and found.closed


def _node_ports_of_no_address(found: Difference) -> bool:
    unnamed = not found.settings.names_node_ports_of(found.question.family)
    return found.question.frontend.node_port and unnamed and not found.ours.reached


KNOWN: tuple[Known, ...] = (
    Known("source ranges given, but none readable or none of the family", _closed_in_a_family_without_ranges),
    Known(
        "source ranges in the annotation `service.beta.kubernetes.io/load-balancer-source-ranges`",
        _ranges_in_the_annotation,
    ),
    Known("node-port addresses that name no address of a family", _node_ports_of_no_address),
)


def explanation(found: Difference) -> Known | None:
    """The entry that explains a difference; None: nothing does, and it is a bug."""
    return next((known for known in KNOWN if known.explains(found)), None)
