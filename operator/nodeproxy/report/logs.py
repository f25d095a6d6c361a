"""How log lines look: text for people, JSON for collectors; both on standard error."""

import contextlib
import logging
import sys
from typing import Literal, TextIO, cast

import structlog

LogFormat = Literal["text", "json"]


class _Unfailing:
    """A stream that loses what it can't write: a full disk or a closed pipe must not stop the proxy."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, or not."""
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)

    def flush(self) -> None:
        """Flush, or not."""
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()


def configure_logs(log_format: LogFormat, *, verbose: bool = False) -> None:
    """Send all log lines of the process to standard error, in one format."""
    log = cast("TextIO", _Unfailing(sys.stderr))
    level = logging.DEBUG if verbose else logging.INFO
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    )
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=log),
    )
    # Libraries log through the standard library; their lines look the same.
    handler = logging.StreamHandler(log)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
