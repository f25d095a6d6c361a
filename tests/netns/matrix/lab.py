"""Runs the agent in each configuration once, asks all of its cells at once, and keeps what became of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Self

from netns.agent import Agent
from netns.manifests import ManifestFolder
from netns.matrix.axes import Protocol, Settings
from netns.matrix.cells import Cell, Row, cells_of
from netns.matrix.expectation import Dropped, expect
from netns.matrix.ground import Ground, destination, flags, manifests, source_address
from netns.matrix.judge import Judgement, Verdict, asks, judge
from netns.matrix.sctp import probe_sctp
from netns.matrix.tracking import forget_connections
from netns.probe import Flow, Outcome, probe

FIRST_TIMEOUT, SECOND_TIMEOUT = 0.5, 2.0
"""Seconds without an answer that count as dropped: at first, and when asked again."""
AT_ONCE, AT_ONCE_IN_VAIN = 150, 600
"""How many packets are under way at a time: those that should be answered, and those that should not."""


class Lab:
    """The ground, with one agent at a time on node-a. Use it in a ``with`` statement.

    Attributes:
        ground: the network.
        asked_again: how many cells took a second look, by configuration.
    """

    def __init__(self) -> None:
        self.ground = Ground()
        self.folder = ManifestFolder()
        self.folder.write("all", manifests(self.ground.world))
        self.asked_again: dict[Settings, int] = {}
        self._known: dict[Settings, dict[Cell, Judgement]] = {}
        self._failed: dict[Settings, Exception] = {}
        self._sources = self.ground.sources

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.folder.close()
        self.ground.close()

    def mismatches(self, row: Row) -> list[str]:
        """What is not as expected in a row: a line for each such cell. A cell that nobody asked is one."""
        lines = []
        for cell in row.cells:
            known = self.judgements(cell.settings)
            judgement = known.get(cell, Judgement(Verdict.WRONG, "it was never asked"))
            if judgement.verdict is not Verdict.RIGHT:
                lines.append(f"{cell}: {judgement.why}")
        return lines

    def judgements(self, settings: Settings) -> dict[Cell, Judgement]:
        """How each cell of a configuration stands; asked when first wanted.

        Raises:
            AgentError: the agent did not run with this configuration; tried only once.
        """
        if settings in self._failed:
            raise self._failed[settings]
        if settings not in self._known:
            try:
                self._known[settings], self.asked_again[settings] = self.run(settings, cells_of(settings))
            except Exception as error:
                self._failed[settings] = error
                raise
        return self._known[settings]

    def run(
        self,
        settings: Settings,
        cells: Sequence[Cell],
        templates: Path | None = None,
        times: int = 1,
        failing: Set[Cell] = frozenset(),
    ) -> tuple[dict[Cell, Judgement], int]:
        """Run an agent and ask cells; those that are unsure are asked again, once.

        Args:
            settings: its configuration.
            cells: what to ask.
            templates: templates to run with; None: the product's.
            times: how many times as often as usual cells are asked that have a choice of endpoints.
            failing: cells that should not be as the oracle says; they are asked together, and only once.

        Returns:
            How each cell stands, and how many were asked again.
        """
        node = self.ground.world.node("node-a")
        node.namespace.nft(
            "".join(f"add table {ip} kube-proxy\ndelete table {ip} kube-proxy\n" for ip in ("ip", "ip6"))
        )
        changed = [] if templates is None else [f"--templates={templates}"]
        agent = Agent(node, [*flags(settings), *changed], self.folder)
        try:
            agent.start()
            agent.settle(60)
            forget_connections(node.namespace)  # they remember what the last configuration decided
            judged = self._ask(cells, FIRST_TIMEOUT, times, failing)
            unsure = [cell for cell in judged.keys() - failing if judged[cell].verdict is Verdict.UNSURE]
            return judged | self._ask(unsure, SECOND_TIMEOUT, max(3, times), failing), len(unsure)
        finally:
            agent.close()

    def _ask(self, cells: Iterable[Cell], timeout: float, times: int, failing: Set[Cell]) -> dict[Cell, Judgement]:
        # Those that will wait in vain go together: the wait is then paid once for many.
        silent: dict[bool, dict[bool, list[Cell]]] = {False: defaultdict(list), True: defaultdict(list)}
        for cell in cells:
            silent[cell in failing or isinstance(expect(cell), Dropped)][cell.protocol is Protocol.SCTP].append(cell)
        outcomes: dict[Cell, list[Outcome]] = defaultdict(list)
        for vain, groups in silent.items():
            for sctp, group in groups.items():
                flat = [cell for cell in group for _ in range(asks(cell, times))]
                flows = [self._flow(cell) for cell in flat]
                tried = (probe_sctp if sctp else probe)(flows, timeout, AT_ONCE_IN_VAIN if vain else AT_ONCE)
                for cell, outcome in zip(flat, tried, strict=True):
                    outcomes[cell].append(outcome)
        return {cell: judge(cell, found) for cell, found in outcomes.items()}

    def _flow(self, cell: Cell) -> Flow:
        address, port = destination(cell)
        namespace = self._sources[cell.source].namespace
        return Flow(namespace, address, port, cell.protocol.value, source_address(cell))  # type: ignore[arg-type]
