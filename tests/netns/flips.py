"""A Service that changes while clients keep connecting, and whether any of them noticed what it should not."""

import bisect
import time
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from netns.flips_model import NAME, Fate, Shape, Way, manifests, ways
from netns.flips_traffic import Both, Conversations, Traffic, Try
from netns.manifests import Manifest
from netns.world import World

State = TypeVar("State", bound=Hashable)


def every_pair(states: Sequence[State]) -> list[State]:
    """A walk that ends where it began and takes each step from one state to another exactly once (Hierholzer)."""
    left = {state: [other for other in reversed(states) if other != state] for state in states}
    path, walk = [states[0]], []
    while path:
        if steps := left[path[-1]]:
            path.append(steps.pop())
        else:
            walk.append(path.pop())
    return walk[::-1]


class Period(NamedTuple):
    """A shape, when it was begun to be put in place, and when the kernel held it."""

    shape: Shape
    begun: float
    settled: float


class Violation(NamedTuple):
    """An attempt that ended as it should not.

    Attributes:
        way: what was tried.
        tried: when, and what came of it.
        allowed: what should have: one for each shape that may have been in force.
        shapes: these shapes.
    """

    way: Way
    tried: Try
    allowed: list[Fate]
    shapes: list[Shape]

    def __str__(self) -> str:
        begun, ended = self.tried.decided
        shapes = "".join(f"\n    {shape}" for shape in self.shapes)
        return f"{self.way}: {self.tried.outcome} within {ended - begun:.3f} s, not {self.allowed} of{shapes}"


class Applies(Protocol):
    """What puts manifests in place; :class:`netns.agent.Agent`."""

    def apply(self, **files: Sequence[Manifest]) -> None:
        """Write files of objects, and wait until the kernel holds them."""


class Flips(Both):
    """Puts shapes of one Service in place, one after the other, while clients take ways to it all the time.

    An attempt may see any shape that was in force at some moment of it: a shape is from when its manifests are
    written until the kernel holds those of the next. So who began before a change and ended after it may see either,
    and everybody else exactly one. Where both shapes mean the same, there is no excuse at any moment.

    Some TCP connections are opened at the beginning and go on through all changes. Use it in a ``with`` statement.

    Args:
        world: the network; its pods serve.
        agent: what serves node-a; it runs.
        ways_: the ways to take.
        every: seconds between two attempts on one way.
        first: the first shape; the ClusterIP's port 80 is served in it.

    Attributes:
        periods: the shapes, with times.
        traffic: the attempts.
        long: the connections that go on.
    """

    def __init__(self, world: World, agent: Applies, ways_: Iterable[Way], *, every: float, first: Shape) -> None:
        self._world = world
        self._agent = agent
        self.ways = {str(way): way for way in ways_}
        self.periods: list[Period] = []
        self.put(first)
        self.traffic = Traffic({name: way.flow(world) for name, way in self.ways.items()}, every)
        long = [way for way in ways(["cluster"], others=False) if way.protocol == "TCP"]
        self.long = Conversations({str(way): way.flow(world) for way in long}, 0.02)

    def put(self, shape: Shape) -> float:
        """Put a shape in place, and return the seconds until the kernel held it.

        Raises:
            AgentError: it did not within 10 s.
        """
        begun = time.monotonic()
        self._agent.apply(**{NAME: manifests(shape, self._world)})
        settled = time.monotonic()
        self.periods.append(Period(shape, begun, settled))
        return settled - begun

    def walk(self, shapes: Iterable[Shape]) -> list[float]:
        """Put shapes in place, each for long enough that every way is taken; how long each took to be in force."""
        took = []
        for shape in shapes:
            took.append(self.put(shape))
            self.traffic.wait_round()
        return took

    def violations(self) -> list[Violation]:
        """What went wrong; after the traffic has ended."""
        found = []
        for tried in self.traffic.tries:
            way = self.ways[tried.name]
            shapes = [period.shape for period in self.possible(tried)]
            fates = list(dict.fromkeys(way.fate(shape) for shape in shapes))
            if not any(way.accepts(tried.outcome, fate, self._world) for fate in fates):
                found.append(Violation(way, tried, fates, shapes))
        return found

    def possible(self, tried: Try) -> list[Period]:
        """The periods whose shapes may have decided about an attempt."""
        begun, ended = tried.decided
        last = bisect.bisect_right(self.periods, ended, key=attrgetter("begun"))
        first = max(0, bisect.bisect_right(self.periods, begun, hi=last, key=attrgetter("settled")) - 1)
        return self.periods[first:last]

    def untried(self) -> list[tuple[Shape, Way]]:
        """Ways that no attempt took while a shape was in force; :meth:`walk` leaves none."""
        seen = set()
        for tried in self.traffic.tries:
            number = bisect.bisect_right(self.periods, tried.begun, key=attrgetter("begun")) - 1
            if number >= 0 and self.periods[number].settled <= tried.begun:
                seen.add((number, tried.name))
        return [
            (period.shape, way)
            for number, period in enumerate(self.periods)
            for name, way in self.ways.items()
            if (number, name) not in seen
        ]
