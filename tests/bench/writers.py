"""Changes of EndpointSlices, made through an API server."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench import cluster
from bench.errors import BenchError

Replace = Callable[[dict[str, Any]], object]
"""Replaces an object in the API server; returns once that has answered."""

_STRIDE = 7919  # prime: changes one after another are of Services far apart


class Change(NamedTuple):
    """A change that was made.

    Attributes:
        service: the number of the Service.
        version: that of its slice, different from all others'.
        sent: when it was sent, in perf_counter seconds.
        answered: when the API server had answered.
    """

    service: int
    version: int
    sent: float
    answered: float

    @property
    def address(self) -> str:
        """The address of the endpoint that came."""
        return cluster.pods(self.service, version=self.version)[-1]


@dataclass
class Changes:
    """Makes changes. In each, one of a Service's endpoints becomes another pod, with an address that none had before.

    Attributes:
        services: how many Services there are.
        replace: the API server's client.
        versions: the version of each slice that was changed; 0: the rest.
    """

    services: int
    replace: Replace
    versions: dict[int, int] = field(default_factory=dict)
    _next: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def make(self) -> Change:
        """Change the next Service."""
        version = next(self._next)
        return self._make(version * _STRIDE % self.services, version)

    def note(self, change: Change) -> None:
        """Count with a change that was made."""
        self.versions[change.service] = change.version

    def replay(self, rate: int, seconds: float) -> list[Change]:
        """Change Services at a steady rate."""
        began = time.perf_counter()
        made: list[Change] = []
        while (passed := time.perf_counter() - began) < seconds:
            while len(made) < passed * rate:
                made.append(self.make())
            time.sleep(0.001)
        return made

    def burst(self, writers: int, seconds: float, at: Callable[[float], None]) -> list[Change]:
        """Change Services as fast as the API server takes it.

        Args:
            writers: how many write at the same time; each has Services of its own.
            seconds: how long.
            at: is called about each second with the seconds that have passed.

        Raises:
            BenchError: the API server did not take a change.
        """
        made: list[list[Change]] = [[] for _ in range(writers)]
        errors: list[Exception] = []
        began = time.monotonic()

        def write(writer: int) -> None:
            own = itertools.cycle(range(writer, self.services, writers))
            while time.monotonic() - began < seconds and not errors:
                try:
                    made[writer].append(self._make(next(own), next(self._next)))
                except Exception as error:  # told to whoever waits
                    errors.append(error)

        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)
                at(time.monotonic() - began)
        if errors:
            msg = f"a change was not taken: {errors[0]}"
            raise BenchError(msg) from errors[0]
        return [change for part in made for change in part]

    def endpoints(self, endpoints: int = 10) -> dict[str, int]:
        """All endpoints that there should be, and how often each occurs."""
        return {
            address: 1
            for number in range(self.services)
            for address in cluster.pods(number, endpoints, self.versions.get(number, 0))
        }

    def _make(self, service: int, version: int) -> Change:
        item = cluster.created(cluster.endpoint_slice(service, version=version))
        sent = time.perf_counter()
        self.replace(item)
        answered = time.perf_counter()
        change = Change(service, version, sent, answered)
        self.note(change)
        return change
