"""The agent: a source of objects on one side, a table per family on the other, and the loop that joins them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodeproxy import __version__
from nodeproxy.kernel.addresses import AddressesError, AddressWatch, list_addresses
from nodeproxy.kernel.errors import KernelError
from nodeproxy.kernel.nft import Nft
from nodeproxy.kernel.support import check_support, deletes_freely, ipv6_usable
from nodeproxy.kernel.watch import TableWatch, WatchError
from nodeproxy.kube.addresses import Family
from nodeproxy.kube.source import Source, SourceHealth
from nodeproxy.model.node import NodeView, node_view, served_families
from nodeproxy.model.settings import ProxySettings
from nodeproxy.report.journal import Journal, SyncResult
from nodeproxy.ruleset.render import TEMPLATES, RenderContext, Renderer, TemplateError
from nodeproxy.sync.advice import Situation, advice
from nodeproxy.sync.drift import Drift, chains_of
from nodeproxy.sync.planner import Planner, Surroundings
from nodeproxy.sync.proxier import Proxier
from nodeproxy.sync.runner import Clock, Intervals, Runner, SystemClock
from nodeproxy.sync.store import ServiceKey, Store


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
        self._present: tuple[str, ...] | None = None
        self._addresses_changed = True
        self._moved = True
        self._node = NodeView(options.node_name)
        self._proxiers: list[Proxier] | None = None
        self._refill = True
        self._runner = Runner(
            self._sync,
            options.intervals,
            self._clock,
            self._tidy,
            self._tidy_due,
            self._full_sync_due,
            self._drift_due,
        )
        self._watch = TableWatch(self._runner.wake)
        self._hearing = False
        self._drift = Drift(self._clock, journal)
        self._store = Store(self._runner.request, journal.problems)
        self._source_addresses: Collection[str] = ()
        self._behind: ServiceKey | None = None

    def run(self) -> None:
        """Work until :meth:`stop`; to be called once, from the thread that is to talk to the kernel.

        Raises:
            UnsupportedError: the kernel or libnftables lacks something.
            PermissionDeniedError: CAP_NET_ADMIN is missing.
            SourceError: the source can never work.
            TemplateError: a template is broken.
        """
        renderers = [Renderer(RenderContext(family), self._options.templates) for family in Family]
        renderers[0].preload()  # a broken template should show now; the files are the same for both
        for renderer in renderers:
            renderer.base()
        version = check_support(self._nft, renderers[0].probe())
        self._refill = deletes_freely(version)
        watch = AddressWatch(self._note_addresses)
        if not watch.start():
            self._journal.warning("addresses are not followed", effect="changes show with the next other one")
        try:
            self._hear_of_changes()
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
            self._watch.stop()

    def stop(self) -> None:
        """End :meth:`run`; from any thread, or from a signal handler."""
        self._runner.stop()

    @property
    def foreign_changes(self) -> Mapping[tuple[Family, str], int]:
        """Transactions of others on our tables so far, by family and program (empty: not known)."""
        return self._drift.counts

    def watch_health(self) -> Sequence[SourceHealth]:
        """How well each part of the source is followed now; from any thread."""
        return self._source.health()

    def _hear_of_changes(self) -> None:
        """Have the kernel tell of changes that others make to our tables."""
        self._nft.follow_port(self._watch.own)
        try:
            self._watch.start()
        except WatchError as error:
            self._hear_nothing(str(error))
        else:
            self._hearing = True

    def _hear_nothing(self, reason: str) -> None:
        """Look at the tables every now and then instead."""
        self._hearing = False
        seconds = self._audit_seconds
        self._journal.warning(
            "changes by other programs are not heard of",
            error=reason,
            effect=f"the tables are looked at every {seconds:g} s instead",
        )
        for proxier in self._proxiers or ():
            proxier.full_every = seconds

    @property
    def _audit_seconds(self) -> float:
        """Seconds after which a table is looked at in any case."""
        intervals = self._options.intervals
        return intervals.maximum if self._hearing else min(intervals.retry, intervals.maximum)

    def _listen(self) -> None:
        """Take note of what others did to the tables that are ours."""
        served = [proxier.family for proxier in self._proxiers] if self._proxiers is not None else [*Family]
        self._drift.heard(heard for heard in self._watch.take() if heard.family in served)

    def _drift_due(self) -> float | None:
        """When a table has to be looked at because somebody else has changed it; None: nobody has."""
        self._listen()
        if self._hearing and not self._watch.working:
            self._hear_nothing("the kernel's messages could not be read")
        return self._drift.due() if self._proxiers is not None else None

    def _note_addresses(self) -> None:
        self._addresses_changed = True
        if self._store.is_complete:
            self._runner.request()

    def _sync(self) -> bool:
        """One run of the loop.

        Returns:
            whether every table is as it should be.
        """
        good = self._look_at_addresses()
        if self._present is None:
            return False  # what is in place already is better than rules for no address at all
        changes = self._store.take()
        moved = changes.surroundings or self._moved
        self._moved = False
        if moved:
            found = self._store.node(self._options.node_name)
            self._node = node_view(found, self._options.node_name, self._options.settings.bind_address)
        first = self._proxiers is None
        if self._proxiers is None:
            self._proxiers = [self._proxier(family) for family in served_families(self._node.primary, ipv6_usable())]
        self._advise(self._proxiers, self._present, changes.services)
        self._listen()
        disturbed = self._drift.take()
        for proxier in self._proxiers:
            disturbances = disturbed.get(proxier.family, [])
            if disturbances:
                proxier.suspect(chains_of(disturbances))
            # An hourly look that is due meanwhile would take them for ours, going by their comments.
            proxier.suspect(chains_of(self._drift.waiting(proxier.family)), look=False)
            result: SyncResult | None = None
            try:
                if not first:
                    proxier.update(changes.services)
                if moved:
                    cidrs = self._store.service_cidrs(proxier.family)
                    proxier.move(Surroundings(self._node, cidrs, self._present), self._store.everything)
            except TemplateError as error:
                self._moved = True
                good = self._failed(proxier, error)
                self._drift.done(proxier.family, disturbances, result)
                continue
            try:
                result = proxier.sync()
            except (KernelError, TemplateError) as error:
                good = self._failed(proxier, error)
            self._drift.done(proxier.family, disturbances, result)
        self._nft.rest()
        return good

    def _look_at_addresses(self) -> bool:
        """List the interfaces' addresses if they may have changed; when that fails, the last known ones count.

        Returns:
            whether they are known.
        """
        if not self._addresses_changed:
            return True
        self._addresses_changed = False  # before listing: what changes from now on is for the next run
        try:
            self._present = list_addresses()
        except AddressesError as error:
            self._addresses_changed = True
            self._journal.warning("addresses unknown", error=str(error))
            return False
        self._moved = True
        return True

    def _failed(self, proxier: Proxier, error: Exception) -> bool:
        self._journal.failed(proxier.family, error, self._options.intervals.retry)
        return False

    def _source_behind(self, changed: Collection[ServiceKey]) -> str:
        """The Service that has the source's address, as namespace/name; empty: none has."""
        addresses = self._source.addresses()
        among = None if addresses != self._source_addresses else {*changed, *filter(None, [self._behind])}
        self._source_addresses = addresses
        self._behind = self._store.serving(addresses, among)
        return str(self._behind or "")

    def _advise(self, proxiers: list[Proxier], present: tuple[str, ...], changed: Collection[ServiceKey]) -> None:
        situation = Situation(
            settings=self._options.settings,
            node=self._node,
            node_known=self._store.node(self._options.node_name) is not None,
            families=[proxier.family for proxier in proxiers],
            present=present,
            services=self._store.service_count(),
            source=str(self._source),
            source_behind=self._source_behind(changed),
        )
        self._journal.advice(advice(situation))

    def _proxier(self, family: Family) -> Proxier:
        options = self._options
        planner = Planner(family, options.settings, self._store.view, options.templates)
        return Proxier(planner, self._nft, self._journal, self._clock, self._audit_seconds, refill=self._refill)

    def _tidy(self) -> None:
        for proxier in self._proxiers or ():
            if not proxier.tidy():
                self._runner.request()
        self._nft.rest()
        self._drift.settle()

    def _tidy_due(self) -> float | None:
        due = [proxier.tidy_due() for proxier in self._proxiers or ()]
        return min((moment for moment in (*due, self._drift.settle_due()) if moment is not None), default=None)

    def _full_sync_due(self) -> float | None:
        return min((proxier.full_sync_due() for proxier in self._proxiers or ()), default=None)
