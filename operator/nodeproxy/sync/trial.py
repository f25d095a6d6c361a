"""Tries the rules of service ports in a table of their own, which is never made: nothing is applied.

That is cheap, however big the real table is: what was refused before can be tried whenever it changes, and where the
kernel only says that the table as a whole would not be valid, a small table tells whose fault it is. What does not fit
with the rest of the real table does not show here; nor does all that makes a table invalid: a kernel that is only asked
(seen on Linux 6.18) does not always look that far.
"""

from collections.abc import Sequence

from nodeproxy.kernel.errors import Refusal, TooLongError, TransactionError
from nodeproxy.kernel.nft import Nft
from nodeproxy.ruleset.diff import BaseAndAddresses, TableState
from nodeproxy.ruleset.operations import Piece, ReplaceTable
from nodeproxy.ruleset.render import Renderer
from nodeproxy.ruleset.rules import ServiceRules
from nodeproxy.sync.isolation import Applier, without

TABLE = "nodeproxy-trial"
_FEW = 40  # service ports that are asked about apart


class Trial:
    """A table to try rules in.

    Args:
        nft: checks transactions.
        renderer: renders the real table's objects.
    """

    def __init__(self, nft: Nft, renderer: Renderer) -> None:
        self.renderer = renderer
        self._nft = nft
        self._elsewhere = renderer.elsewhere(TABLE)

    def refused(self, rules: Sequence[ServiceRules], base: BaseAndAddresses) -> dict[str, Refusal]:
        """Which service ports (as ``ns/name:port``) are refused, and why.

        Args:
            rules: the rules of the service ports to try.
            base: the table's base and node-port addresses.

        Raises:
            TemplateError: a template is broken.
            KernelError: nothing can be tried.
        """
        applier, piece = self._piece(rules, base)
        try:
            applier.try_whole(piece)
        except TooLongError:
            middle = len(rules) // 2
            if not middle:
                return {}
            return self.refused(rules[:middle], base) | self.refused(rules[middle:], base)
        except TransactionError:
            pass  # it is nobody's fault that this shows, so it is not for this to judge
        return applier.refused

    def first_refused(self, rules: Sequence[ServiceRules], base: BaseAndAddresses) -> Sequence[Refusal]:
        """The same, but with one look: only the first of those that make the table invalid is found.

        Raises:
            TemplateError, KernelError: as :meth:`refused`.
        """
        suspects = rules
        while len(suspects) > _FEW:
            # A question about each of them apart takes ten times as long as one about all: so it comes last.
            middle = len(suspects) // 2
            suspects = suspects[:middle] if self._would_be_refused(suspects[:middle], base) else suspects[middle:]
        found = self._ask(suspects, base)
        return found if found or suspects is rules else self._ask(rules, base)

    def _would_be_refused(self, rules: Sequence[ServiceRules], base: BaseAndAddresses) -> bool:
        applier, piece = self._piece(rules, base)
        if applier.refused:
            return True
        try:
            self._nft.check(self._elsewhere.transaction(piece.operations(), applier.declared))
        except TooLongError:
            return False
        except TransactionError:
            return True
        return False

    def _ask(self, rules: Sequence[ServiceRules], base: BaseAndAddresses) -> list[Refusal]:
        applier, piece = self._piece(rules, base)
        return [*applier.refused.values(), *applier.ask(piece)]

    def _piece(self, rules: Sequence[ServiceRules], base: BaseAndAddresses) -> tuple[Applier, Piece]:
        """A table with these service ports only; those that can't be rendered are refused already."""
        applier = Applier(self._nft, self._elsewhere)
        state = TableState(None, self._elsewhere, applier.refuse)
        applier.declared = state.declared
        piece = state.replace({each.name: each for each in rules}, 0.0, base)
        piece.prepare = [operation for operation in piece.prepare if not isinstance(operation, ReplaceTable)]
        return applier, without(piece, applier.refused) if applier.refused else piece
