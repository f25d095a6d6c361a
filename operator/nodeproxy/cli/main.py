"""``nodeproxy``: finds the command, and turns errors into a line on standard error and an exit code."""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

import structlog

from nodeproxy.cli import cleanup, render, run, version
from nodeproxy.cli.flags import Parser
from nodeproxy.config.settings import ConfigError
from nodeproxy.kernel.errors import KernelError, PermissionDeniedError, UnsupportedError
from nodeproxy.kube.source import SourceError
from nodeproxy.model.node import UnsupportedFamilyError
from nodeproxy.ruleset.render import TemplateError

OK = 0
FAILED = 1
USAGE = 2
UNSUPPORTED = 3
NO_PERMISSION = 4
NO_INPUT = 5

# The first kind that fits decides.
_CODES: dict[type[Exception], int] = {
    ConfigError: USAGE,
    UnsupportedError: UNSUPPORTED,
    UnsupportedFamilyError: UNSUPPORTED,
    PermissionDeniedError: NO_PERMISSION,
    SourceError: NO_INPUT,
    TemplateError: NO_INPUT,
    KernelError: FAILED,
}

_EPILOG = """\
exit codes:
  0  done
  1  it failed; standard error says why
  2  flags or configuration that make no sense
  3  the kernel or libnftables lacks something
  4  permission denied (CAP_NET_ADMIN is needed)
  5  the input or the templates cannot be read
"""


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="nodeproxy",
        description="A Kubernetes service proxy: programs nftables on one node, and says what it does.",
        epilog=_EPILOG,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (run, render, cleanup, version):
        module.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        the exit code.
    """
    parsed = build_parser().parse_args(arguments)
    try:
        code = int(parsed.command(parsed))
        if sys.stdout is not None:  # it is when the descriptor was closed from the start
            sys.stdout.flush()
    except OSError as error:
        # The output can't be written. A closed pipe is no news: whoever read it has seen enough (`… render | head`).
        _abandon(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            print(f"nodeproxy: {error}", file=sys.stderr)
        return FAILED
    except tuple(_CODES) as error:
        if getattr(parsed, "logging_format", "text") == "json":
            structlog.get_logger("nodeproxy").error("failed", error=str(error), kind=type(error).__name__)
        else:
            for line in str(error).splitlines():
                print(f"nodeproxy: {line}", file=sys.stderr)
        return next(code for kind, code in _CODES.items() if isinstance(error, kind))
    return code


def entry_point() -> None:
    """The program."""
    _open_standard_descriptors()
    code = main()
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            _abandon(sys.stderr)  # what the log could not take must not decide how the program ends
    sys.exit(code)


def _abandon(stream: TextIO) -> None:
    """Let what is left to write to a stream that takes nothing any more go nowhere, at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_standard_descriptors() -> None:
    """Occupy 0, 1 and 2 where they were closed: else a socket gets such a number, and whoever writes there hits it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
