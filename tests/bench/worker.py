"""The process of one measurement: enters a network namespace of its own, measures, and prints the figures as JSON.

usage: python -m bench.worker MEASURE [ARGUMENTS-AS-JSON]
"""

import json
import signal
import subprocess
import sys

from netns import privileges


def main(argv: list[str]) -> int:
    """Do one measurement."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # blocked when it was started
    privileges.ensure()
    privileges.unshare(privileges.CLONE_NEWNET)
    for words in ("link set lo up", "address add 192.0.2.1/32 dev lo"):  # the own node's address
        subprocess.run(["ip", *words.split()], check=True, timeout=20)
    # Only now: threads that an import might start would stay outside.
    from bench.measures import MEASURES  # noqa: PLC0415
    from nodeproxy.cli.collector import calm_collector  # noqa: PLC0415

    calm_collector()  # as `nodeproxy run` does
    figures = MEASURES[argv[0]](**json.loads(argv[1] if len(argv) > 1 else "{}"))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
