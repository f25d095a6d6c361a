"""Both sides on one control plane: makes a seed's objects, waits for both proxies, and compares the flows' fates."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.control_plane import AGENT, KUBE_PROXY, ControlPlane
from cluster.differential.fates import LONG_TIMEOUT, Asker, Fate, Fates, same
from cluster.differential.generate import TARGETS, Made, cluster, host_addresses
from cluster.differential.ground import ORIGINS, PLAIN_POD, Ground
from cluster.differential.known import Difference, Known, explanation
from cluster.differential.objects import MARKER_PORT, ZONE_ENDPOINTS, Objects
from cluster.differential.proxies import KubeProxy, NodeProxy, Proxy
from cluster.differential.questions import Question, questions
from cluster.differential.settings import Settings, settings_of
from cluster.differential.states import ZONES
from cluster.processes import Keeper, ProgramError, Scratch
from netns.addresses import FAMILIES, Family, Pair
from netns.manifests import Manifest
from netns.probe import Answer, Flow, probe

_SECOND_LOOKS = 2
_COUNTER_LOOKS = 20
_CLIENTS = 40
_ZONE_PATIENCE, _ZONE_TRIES = 6.0, 25


@dataclass
class Result:
    """What a seed showed.

    Attributes:
        seed: the seed.
        settings: how the proxies were configured.
        made: its Services that the API server took.
        refused: what the API server refused, and why.
        fates: what became of each flow, with kube-proxy and with nodeproxy.
        differences: flows with another fate, and no reason for it.
        explained: flows with another fate, and the entry of docs/differences.md that says why.
        looked_again: how many flows were looked at again before that was clear.
        zone_missed: whether kube-proxy had not learned of the node's zone when it started.
        seconds: how long each part took.
        rules: the rules that concern a difference, of each side.
    """

    seed: int
    settings: Settings
    made: list[Made] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fates: dict[Question, tuple[Fate, Fate]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    explained: list[tuple[Difference, Known]] = field(default_factory=list)
    looked_again: int = 0
    zone_missed: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    rules: dict[Question, tuple[str, str]] = field(default_factory=dict)


class Side:
    """One network with one proxy."""

    def __init__(self, plane: ControlPlane, name: str, make: Callable[[Ground], Proxy]) -> None:
        self.name = name
        self.ground = Ground()
        try:
            plane.attach(self.ground.node, name="control")
            self.proxy = make(self.ground)
        except BaseException:
            self.ground.close()
            raise
        self.asker = Asker(self.ground)

    def close(self) -> None:
        """End the proxy and let go of the network."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.ground.close)
            self.proxy.stop()


class Laboratory:
    """Both sides. Use it in a ``with`` statement; what a seed shows is looked at once, when first wanted.

    Args:
        plane: the control plane.
        self_check: kube-proxy on both sides, which must show no difference.
        say: takes a line for each seed.

    Attributes:
        theirs, ours: the two sides.
        objects: what is in the API server.
        self_check: whether there is kube-proxy on both.
    """

    def __init__(self, plane: ControlPlane, *, self_check: bool = False, say: Callable[[str], None] = print) -> None:
        self._plane = plane
        self.self_check = self_check
        self._say = say
        self._results: dict[int, Result] = {}
        self._failed: dict[int, Exception] = {}
        self._current: int | None = None
        self._zoned = Pair("", "")
        with contextlib.ExitStack() as stack:
            scratch = Scratch()
            stack.callback(scratch.close)
            keeper = Keeper()
            stack.callback(keeper.close)
            self._folder = scratch.path
            self.theirs = Side(plane, "kube-proxy", lambda ground: self._kube_proxy(ground, keeper, "theirs"))
            stack.callback(self.theirs.close)
            ours = self._kube_proxy if self_check else self._node_proxy
            self.ours = Side(plane, "nodeproxy", lambda ground: ours(ground, keeper, "ours"))
            stack.callback(self.ours.close)
            self.objects = Objects(plane.api, list(self.theirs.ground.world.nodes.values()))
            stack.callback(self.objects.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def result(self, seed: int) -> Result:
        """What a seed shows.

        Raises:
            ProgramError: a proxy ended, or did not get done in time. It is raised again whenever this is called.
        """
        if seed in self._failed:
            raise self._failed[seed]
        if seed not in self._results:
            try:
                self._results[seed] = self._look(seed)
            except Exception as error:
                self._failed[seed] = error
                raise
        return self._results[seed]

    def counter_check(self, seed: int, *flags: str) -> list[Difference]:
        """What differs when nodeproxy runs with more flags, such as wrong templates, on the same objects.

        Returns:
            Flows whose fate differs from what it is with kube-proxy and was with nodeproxy; some of them, each of
            which was looked at again.
        """
        if self._current != seed:
            self._results.pop(seed, None)
        result = self.result(seed)
        alike = [one for one, (theirs, ours) in result.fates.items() if same(one, theirs, ours)]
        theirs = {question: result.fates[question][0] for question in alike}
        self.ours.proxy.run(result.settings, *flags)
        self._settle(self.ours)
        ours = self._ours_alone(theirs)
        unsure = [one.question for one in self._differences(result, theirs, ours, {})][:_COUNTER_LOOKS]
        ours = self.ours.asker.thoroughly(unsure, timeout=LONG_TIMEOUT)
        return self._differences(result, {question: theirs[question] for question in unsure}, ours, {})

    def movers(self, affinity: int, pause: float) -> dict[tuple[str, Family], int]:
        """How many of 40 clients have another one of two endpoints after a pause, by side and family.

        Args:
            affinity: the timeout of the Service's session affinity in seconds.
            pause: seconds between a client's connections.
        """
        if self._current is None:
            self._prepare(0, Result(0, settings_of(0)))
        addresses = self.objects.serve(
            lambda family: [{"addresses": [host_addresses(name).of(family)]} for name in ZONE_ENDPOINTS],
            sessionAffinity="ClientIP",
            sessionAffinityConfig={"clientIP": {"timeoutSeconds": affinity}},
        )
        self._settle(self.theirs, self.ours)
        before = self._endpoints_of_clients(addresses)
        time.sleep(pause)
        after = self._endpoints_of_clients(addresses)
        return {
            key: sum(one != other for one, other in zip(found, after[key], strict=True))
            for key, found in before.items()
        }

    def _endpoints_of_clients(self, addresses: Pair) -> dict[tuple[str, Family], list[str]]:
        found = {}
        origin = ORIGINS["a client"]
        for side in (self.theirs, self.ours):
            namespace = side.ground.host(origin.host).namespace
            for family in FAMILIES:
                flows = [
                    Flow(namespace, addresses.of(family), MARKER_PORT, "TCP", origin.alias(family, number))
                    for number in range(_CLIENTS)
                ]
                found[side.name, family] = [
                    outcome.name if isinstance(outcome, Answer) else str(outcome)
                    for outcome in probe(flows, LONG_TIMEOUT)
                ]
        return found

    # --- one seed

    def _look(self, seed: int) -> Result:
        result = Result(seed, settings_of(seed))
        services = self._prepare(seed, result)
        began = time.monotonic()
        asked = questions(seed, [(made, services[made.name]) for made in result.made])
        theirs, ours = self._compare(asked, result, services)
        result.fates = {question: (theirs[question], ours[question]) for question in asked}
        result.seconds["flows"] = time.monotonic() - began
        for found in self._differences(result, theirs, ours, services):
            known = explanation(found)
            if known is None:
                result.differences.append(found)
            else:
                result.explained.append((found, known))
        for found in result.differences[:10]:
            result.rules[found.question] = self._rules(found)
        self._say(_line(result))
        return result

    def _prepare(self, seed: int, into: Result) -> dict[str, Manifest]:
        """Have the objects of a seed in the API server, and both proxies know them.

        With every other seed the proxies run before there are objects, and follow as they come.
        """
        self._current = None
        began = time.monotonic()
        self.objects.clear()
        into.seconds["clearing"] = time.monotonic() - began
        self.objects.label_zone(ZONES[0] if into.settings.zoned else None)
        if seed % 2:
            self._run(into)
        began = time.monotonic()
        wanted = cluster(seed)
        services, refused = self.objects.create(wanted)
        into.made = [made for made in wanted if made.name in services]
        into.refused = [f"{made.cell}: {refused[made.name]}" for made in wanted if made.name in refused]
        self._zoned = self.objects.mark_zones()
        into.seconds["creating"] = time.monotonic() - began
        self._current = seed
        self._run(into)
        began = time.monotonic()
        self._await_zone(into)
        into.seconds["zone"] = time.monotonic() - began
        return services

    def _run(self, into: Result) -> None:
        for side in (self.theirs, self.ours):
            began = time.monotonic()
            side.proxy.run(into.settings)
            what = f"restarting {side.name}"
            into.seconds[what] = into.seconds.get(what, 0) + time.monotonic() - began
        began = time.monotonic()
        self._settle(self.theirs, self.ours)
        into.seconds["waiting"] = into.seconds.get("waiting", 0) + time.monotonic() - began

    def _await_zone(self, result: Result) -> None:
        """Wait until both proxies know the node's zone.

        kube-proxy 1.37 may miss it when it starts: it asks for the Node's events before it says who handles them. A
        label that changes is not missed.
        """
        if not result.settings.zoned:
            return
        deadline = time.monotonic() + _ZONE_PATIENCE
        jiggled = False
        while not self._knows_zone(self.ours):
            if time.monotonic() > deadline:
                raise ProgramError(f"nodeproxy does not know its zone; its log ends:\n{self.ours.proxy.log()}")
        while not self._knows_zone(self.theirs):
            if time.monotonic() > deadline and jiggled:
                raise ProgramError(f"kube-proxy does not know its zone; its log ends:\n{self.theirs.proxy.log()}")
            if not jiggled and time.monotonic() > deadline - _ZONE_PATIENCE / 2:
                result.zone_missed = jiggled = True
                self.objects.label_zone("zone-nowhere")
                self.objects.label_zone(ZONES[0])
                deadline += _ZONE_PATIENCE

    def _knows_zone(self, side: Side) -> bool:
        """Whether a Service with an endpoint for each zone is served by the one for this zone alone."""
        pod = side.ground.world.pod(PLAIN_POD)
        here = f"{ZONE_ENDPOINTS[0]}:{TARGETS[0]}"
        for address in self._zoned:
            answers = pod.connect_times(_ZONE_TRIES, address, MARKER_PORT)
            if not all(isinstance(answer, Answer) and answer.name == here for answer in answers):
                time.sleep(0.1)
                return False
        return True

    def _settle(self, *sides: Side) -> None:
        # Twice: a sync may be under way in pieces when the first one shows.
        for _ in range(2):
            addresses = self.objects.mark()
            for side in sides:
                side.proxy.await_marker(addresses)
        for side in sides:
            side.proxy.forget()

    def _compare(
        self, asked: Sequence[Question], result: Result, services: Mapping[str, Manifest]
    ) -> tuple[Fates, Fates]:
        theirs, ours = self._both(lambda asker: asker.first(asked))
        open_ = [q for q in asked if theirs[q].reached or ours[q].reached or theirs[q] != ours[q]]
        self._update(theirs, ours, self._both(lambda asker: asker.thoroughly(open_)))
        for times in range(2, 2 + _SECOND_LOOKS):
            found = self._differences(result, theirs, ours, services)
            unsure = [one.question for one in found if explanation(one) is None]
            if not unsure:
                break
            result.looked_again += len(unsure)
            look = partial(Asker.thoroughly, questions=unsure, timeout=LONG_TIMEOUT, times=times)
            self._update(theirs, ours, self._both(look))
        return theirs, ours

    def _both(self, ask: Callable[[Asker], Fates]) -> tuple[Fates, Fates]:
        return ask(self.theirs.asker), ask(self.ours.asker)

    @staticmethod
    def _update(theirs: Fates, ours: Fates, found: tuple[Fates, Fates]) -> None:
        theirs |= found[0]
        ours |= found[1]

    def _ours_alone(self, theirs: Fates) -> Fates:
        asker = self.ours.asker
        fates = asker.first(theirs)
        # Whoever has become unreachable for all is known by now; the others may have lost or found some.
        return fates | asker.thoroughly([question for question in theirs if fates[question].reached])

    def _differences(
        self, result: Result, theirs: Fates, ours: Fates, services: Mapping[str, Manifest]
    ) -> list[Difference]:
        return [
            Difference(
                question,
                services.get(question.service.partition("/")[2]),
                result.settings,
                theirs[question],
                ours[question],
            )
            for question in theirs
            if not same(question, theirs[question], ours[question])
        ]

    def _rules(self, found: Difference) -> tuple[str, str]:
        question = found.question
        name = f"{question.service}/{question.protocol.lower()}/{question.port_name}"
        words = [name, f"{question.address} "] if question.service else [f"{question.address} "]
        family = question.family
        return self.theirs.proxy.rules(family, words), self.ours.proxy.rules(family, words)

    # --- proxies

    def _kube_proxy(self, ground: Ground, keeper: Keeper, name: str) -> Proxy:
        config = self._plane.kubeconfig_for(KUBE_PROXY)
        program = self._plane.programs.kube_proxy
        return KubeProxy(program, ground.node.namespace, keeper, config, self._folder / name)

    def _node_proxy(self, ground: Ground, keeper: Keeper, name: str) -> Proxy:
        config: Path = self._plane.kubeconfig_for(AGENT)
        return NodeProxy(ground.node.namespace, keeper, config, self._folder / name)


def _line(result: Result) -> str:
    took = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in result.seconds.items())
    return (
        f"seed {result.seed}: {len(result.made)} Services, {len(result.fates)} flows,"
        f" {len(result.differences)} differences, {len(result.explained)} on purpose,"
        f" {result.looked_again} looked at again, {len(result.refused)} Services refused by the API server ({took})"
        f"{'; kube-proxy had missed the zone' if result.zone_missed else ''}"
    )
