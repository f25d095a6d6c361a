"""The agent: a source of objects on one side, a table per family on the other, and the loop that joins them."""

from dataclasses import dataclass, field
from pathlib import Path

from nodeproxy import __version__
from nodeproxy.kernel.addresses import AddressesError, AddressWatch, list_addresses
from nodeproxy.kernel.errors import KernelError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import check_support, ipv6_usable
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Source
from nodeproxy.model.node import NodeView, node_view, served_families
from nodeproxy.model.settings import ProxySettings
from nodeproxy.report.journal import Journal
from nodeproxy.ruleset.render import TEMPLATES, RenderContext, Renderer, TemplateError
from nodeproxy.sync.advice import Situation, advice
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.proxier import Proxier
from nodeproxy.sync.runner import Clock, Intervals, Runner, SystemClock
from nodeproxy.sync.store import Changes, Store


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How the agent works.

    Attributes:
        node_name: the Node that this is.
        settings: decisions about traffic.
        intervals: seconds between syncs.
        templates: folder of the templates.
    """

    node_name: str
    settings: ProxySettings
    intervals: Intervals = field(default_factory=Intervals)
    templates: Path = TEMPLATES


class Agent:
    """Serves Services on this node until stopped. Rules stay in place when it ends.

    Args:
        source: where objects come from.
        options: how to work.
        journal: is told of all that happens.
        clock: the time.
    """

    def __init__(self, source: Source, options: AgentOptions, journal: Journal, clock: Clock | None = None) -> None:
        self._source = source
        self._options = options
        self._journal = journal
        self._clock = clock or SystemClock()
        self._nft = Nft()
        self._present: tuple[str, ...] = ()
        self._addresses_changed = True
        self._node: NodeView | None = None
        self._proxiers: list[Proxier] | None = None
        self._runner = Runner(self._sync, options.intervals, self._clock, self._tidy, self._tidy_due)
        self._store = Store(self._runner.request, journal.problems)

    def run(self) -> None:
        """Work until :meth:`stop`; to be called once, from the thread that is to talk to the kernel.

        Raises:
            UnsupportedError: the kernel or libnftables lacks something.
            PermissionDeniedError: CAP_NET_ADMIN is missing.
            SourceError: the source can never work.
            TemplateError: a template is broken.
        """
        version = check_support(self._nft)
        Renderer(RenderContext(Family.IPV4), self._options.templates).base()  # a broken template should show now
        watch = AddressWatch(self._note_addresses)
        watch.start()
        try:
            self._source.start(self._store)
            self._journal.event(
                "started",
                version=__version__,
                node=self._options.node_name,
                source=str(self._source),
                libnftables=version,
            )
            self._runner.loop()
        finally:
            self._source.stop()
            watch.stop()

    def stop(self) -> None:
        """End :meth:`run`; from any thread, or from a signal handler."""
        self._runner.stop()

    def _note_addresses(self) -> None:
        self._addresses_changed = True
        if self._store.is_complete:
            self._runner.request()

    def _sync(self) -> bool:
        """One run of the loop.

        Returns:
            whether every table is as it should be.
        """
        changes = self._store.take()
        try:
            proxiers = self._plan(changes)
        except AddressesError as error:
            self._addresses_changed = True
            self._journal.warning("addresses unknown", error=str(error))
            proxiers = self._proxiers or []
            self._note(proxiers, changes)
            return False
        good = True
        for proxier in proxiers:
            try:
                proxier.sync()
            except (KernelError, TemplateError) as error:
                self._journal.failed(proxier.family, error, self._options.intervals.retry)
                good = False
        return good

    def _plan(self, changes: Changes) -> list[Proxier]:
        """Bring the plans up to date.

        Raises:
            AddressesError: the interfaces' addresses could not be listed.
        """
        moved = changes.surroundings or self._addresses_changed or self._node is None
        if self._addresses_changed:
            self._addresses_changed = False
            self._present = list_addresses()
        options = self._options
        found = self._store.node(options.node_name)
        if moved or self._node is None:
            self._node = node_view(found, options.node_name, options.settings.bind_address)
        node = self._node
        first = self._proxiers is None
        if self._proxiers is None:
            families = served_families(node.primary, ipv6_usable())
            self._proxiers = [self._proxier(family) for family in families]
        self._journal.advice(
            advice(
                Situation(
                    settings=options.settings,
                    node=node,
                    node_known=found is not None,
                    families=[proxier.family for proxier in self._proxiers],
                    present=self._present,
                    services=self._store.service_count(),
                )
            )
        )
        for proxier in self._proxiers:
            if not first:
                proxier.update(changes.services)
            if moved:
                cidrs = self._store.service_cidrs(proxier.family)
                proxier.move(Surroundings(node, cidrs, self._present), self._store.everything)
        return self._proxiers

    def _note(self, proxiers: list[Proxier], changes: Changes) -> None:
        """Take changes into the plans, though the surroundings could not be looked at."""
        for proxier in proxiers:
            proxier.update(changes.services)

    def _proxier(self, family: Family) -> Proxier:
        options = self._options
        planner = Planner(family, options.settings, self._store.view, options.templates)
        return Proxier(planner, self._nft, self._journal, self._clock, options.intervals.maximum)

    def _tidy(self) -> None:
        for proxier in self._proxiers or ():
            if not proxier.tidy():
                self._runner.request()

    def _tidy_due(self) -> float | None:
        due = [moment for proxier in self._proxiers or () if (moment := proxier.tidy_due()) is not None]
        return min(due, default=None)
