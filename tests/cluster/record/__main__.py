"""``python -m cluster.record``: record what kube-proxy of each release leaves. See :mod:`cluster.record`."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from cluster.programs import programs
from cluster.record.old_kube_proxy import old_kube_proxy
from cluster.record.recorder import Recorder
from netns import privileges
from netns.recorded import FOLDER, RELEASES


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="make record-kube-proxy", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=FOLDER, help="folder of the recordings (%(default)s)")
    parser.add_argument("--release", action="append", choices=RELEASES, help="only this release; may be repeated")
    arguments = parser.parse_args()
    privileges.ensure()
    proxies = {"1.31": old_kube_proxy, "1.37": lambda: programs().kube_proxy}
    wanted = {release: proxies[release]() for release in arguments.release or RELEASES}
    with tempfile.TemporaryDirectory(prefix="record-") as folder, Recorder(Path(folder)) as recorder:
        recorder.save_objects(arguments.out / "objects.yaml")
        for release, program in wanted.items():
            began = time.monotonic()
            recorder.record(program, arguments.out / release)
            print(f"{arguments.out / release}: recorded in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
