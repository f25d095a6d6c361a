"""What goes wrong with a measurement."""


class BenchError(Exception):
    """A measurement that means nothing; the message says why."""
