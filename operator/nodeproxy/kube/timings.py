"""How long the reflector waits for what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """How long to wait for what, in seconds.

    Attributes:
        connect: for a connection.
        answer: for the next bytes of a list.
        silence: for anything on a watch. API servers send a bookmark every minute.
        watch: shortest and longest time after which the API server is asked to end a watch.
        first_backoff: longest pause after a first failure; it doubles with each further one.
        most_backoff: the longest pause.
        most_unanswered: the longest pause where nothing answers, which costs nobody much.
        steady: a watch that has lasted this long ends the count of failures.
        brief: a watch that ends sooner, without anything on it, counts as a failure.
        absent: pause before a resource is asked for again that the API server does not have.
        most_wait: the longest pause that the API server may ask for.
    """

    connect: float = 10.0
    answer: float = 30.0
    silence: float = 90.0
    watch: tuple[float, float] = (300.0, 600.0)
    first_backoff: float = 1.0
    most_backoff: float = 30.0
    most_unanswered: float = 10.0
    steady: float = 30.0
    brief: float = 1.0
    absent: float = 300.0
    most_wait: float = 120.0
