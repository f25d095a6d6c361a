"""``nodeproxy run``."""

import argparse
import os
import signal
import threading
import time

from nodeproxy.cli.collector import calm_collector
from nodeproxy.cli.flags import Parser, add_logging, add_periods, add_source, add_traffic, raw_config
from nodeproxy.config.settings import ConfigError, validate
from nodeproxy.kube.manifests import ManifestFolder
from nodeproxy.kube.source import Source
from nodeproxy.report.journal import Journal
from nodeproxy.report.logs import configure_logs
from nodeproxy.sync.agent import Agent, AgentOptions

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_PATIENCE = 1.0  # seconds


def add_command(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="serve Services on this node",
        description="Serve Services on this node: program nftables, and follow every change in the API server\n"
        "(or in a folder of manifests) until stopped.\n"
        "Nothing is written before all objects have been read. When it ends, the rules stay in place.",
    )
    add_source(parser)
    add_traffic(parser)
    add_periods(parser)
    add_logging(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the agent until SIGTERM, SIGINT or SIGHUP.

    Raises:
        ConfigError: a flag makes no sense.
        SourceError: the folder cannot be read, or nothing says where the API server is.
        KernelError: the kernel cannot be worked with at all.
        TemplateError: a template is broken.
    """
    configure_logs(arguments.logging_format, verbose=arguments.v >= 2)
    calm_collector()
    config = validate(raw_config(arguments))
    journal = Journal()
    options = AgentOptions(config.node_name, config.settings, config.intervals, arguments.templates)
    agent = Agent(_source(arguments, config.node_name), options, journal)
    # A thread takes the signals: a handler would run in the middle of whatever the main thread does.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    threading.Thread(target=_stop_on_signal, args=(agent, journal), name="signals", daemon=True).start()
    agent.run()
    journal.event("stopped")
    return 0


def _source(arguments: argparse.Namespace, node_name: str) -> Source:
    """Where objects come from.

    Raises:
        ConfigError: flags that contradict each other.
        SourceError: nothing says where the API server is, or what says it can't be read.
    """
    if arguments.manifests is None:
        # The client is large, and of no use to whoever reads a folder.
        from nodeproxy.kube.access import find_access  # noqa: PLC0415
        from nodeproxy.kube.api import ApiSource  # noqa: PLC0415

        return ApiSource(find_access(arguments.kubeconfig, arguments.master), node_name)
    given = [f"--{name}" for name in ("kubeconfig", "master") if getattr(arguments, name)]
    if given:
        raise ConfigError([f"--manifests: there is no API server to ask with it ({', '.join(given)})"])
    return ManifestFolder(arguments.manifests)


def _stop_on_signal(agent: Agent, journal: Journal) -> None:
    received = signal.sigwait(_SIGNALS)
    asked = time.monotonic()
    try:
        journal.event("stopping", signal=signal.Signals(received).name)
    finally:
        agent.stop()
    # Whoever asks again does not want to wait for a sync that hangs; some tools send the first request twice.
    while True:
        received = signal.sigwait(_SIGNALS)
        if time.monotonic() - asked > _PATIENCE:
            os._exit(128 + received)
