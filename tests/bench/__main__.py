"""Runs the benchmark. Exit codes: 0 all as expected, 1 an expectation was missed, 2 something could not be measured."""

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench import own_process, plan, progress, report, rival_report
from bench.checks import judge
from bench.errors import BenchError
from bench.plan import Beside, Task
from bench.samples import Samples
from cluster.go import GoError
from cluster.programs import ProgramsError, programs

_ENDINGS = {signal.SIGINT, signal.SIGTERM}


def main(argv: Sequence[str]) -> int:
    """Measure, print tables, write JSON."""
    arguments = _parser().parse_args(argv)
    # Built by now, if need be: measurements have neither the time nor a network.
    try:
        kubernetes = programs() if any(topic in plan.BESIDE for topic in arguments.only) else None
    except (ProgramsError, GoError) as error:
        _say(f"{error}\nWithout Kubernetes' programs, leave these out: --only {','.join(plan.INSIDE)}")
        return 2
    if arguments.programs:
        print(kubernetes.folder if kubernetes else "")
        return 0
    began = time.monotonic()
    libnftables = measure(Task("libraries", "libraries"))["libnftables"]
    environment = _environment(libnftables) | ({"kubernetes": kubernetes.version} if kubernetes else {})
    _say(f"libnftables {libnftables}, Linux {platform.release()}, {environment['cpus']} CPUs")
    samples, raw, failed = Samples(), [], []
    queue = [
        (task, turn)
        for turn in range(arguments.repeat)
        for task in plan.tasks(arguments.sizes, arguments.only, arguments.changes, arguments.edits, _beside(arguments))
        if turn < task.most
    ]
    for position, (task, turn) in enumerate(queue, start=1):
        started = time.monotonic()
        words = f"[{position}/{len(queue)}] {task.topic}" + (f" {task.services:,}" if task.services else "")
        entry = {"topic": task.topic, "measure": task.measure, "arguments": task.arguments, "turn": turn}
        try:
            figures = measure(task)
        except BenchError as error:
            _say(f"{words}: failed: {error}")
            failed.append(words)
            raw.append({**entry, "error": str(error)})
        else:
            # Some are about several programs or sizes at once.
            for part in figures.get("parts", [{"topic": task.topic, "services": task.services, "figures": figures}]):
                samples.add((part["topic"], part["services"]), part["figures"])
            _say(f"{words}: {time.monotonic() - started:.1f} s")
            raw.append({**entry, "figures": figures})
            failed += [f"{words}: {failure}" for failure in figures.get("failures", ())]
    verdicts = [] if arguments.no_check else list(judge(samples, libnftables))
    environment |= {"load average after": os.getloadavg(), "seconds": round(time.monotonic() - began)}
    path = _write(arguments.json_dir, environment, raw, [vars(verdict) for verdict in verdicts])
    print(f"{environment['cpu']} x {environment['cpus']}, Linux {environment['kernel']},", end=" ")
    print(f"libnftables {libnftables}, Python {environment['python']}; {environment['seconds']} s,", end=" ")
    print(f"load average {environment['load average'][0]:.1f} before, {environment['load average after'][0]:.1f} after")
    if kubernetes:
        print(f"Kubernetes {kubernetes.version}, kube-proxy in nftables mode")
    if environment["user namespace"]:
        print("In a user namespace: one netlink message is limited in size, so figures differ from those of root.")
    print()
    for line in [
        *report.figures(samples),
        *rival_report.figures(samples),
        *(report.verdicts(verdicts) if verdicts else ()),
    ]:
        print(line)
    print(f"\nAll samples: {path}")
    for words in failed:
        print(f"could not be measured: {words}")
    missed = any(not verdict.met for verdict in verdicts if verdict.measured is not None)
    return 2 if failed else int(missed)


def measure(task: Task) -> dict[str, Any]:
    """Do one measurement, in a process of its own.

    Raises:
        BenchError: it failed or took too long.
    """
    with progress.listening() as (environment, descriptor):
        process, output, errors = _run(task, environment, descriptor)
    if process.returncode != 0:
        raise BenchError(errors.strip().rpartition("\n")[2] or f"exit code {process.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


def _run(task: Task, environment: dict[str, str], descriptor: int) -> tuple["subprocess.Popen[str]", str, str]:
    # Whoever ends this process meanwhile waits until the new one can be ended with it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    try:
        # A process group of its own, so that all that it started can be ended with it.
        process = subprocess.Popen(
            own_process("bench.worker", task.measure, json.dumps(task.arguments)),
            env=environment,
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
            output, errors = process.communicate(timeout=task.timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                msg = f"not done within {task.timeout:g} s"
                raise BenchError(msg) from None
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
    return process, output, errors


def _environment(libnftables: str) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "libnftables": libnftables,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "load average": os.getloadavg(),
        "user namespace": _in_user_namespace(),
    }


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _in_user_namespace() -> bool:
    """Whether root here is an ordinary user outside: then the size of a netlink message is limited."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _write(folder: Path, environment: dict[str, Any], raw: list[Any], verdicts: list[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    moment = environment["date"].replace(":", "").replace("+0000", "Z")
    path = folder / f"{moment}-nft-{environment['libnftables']}.json"
    path.write_text(json.dumps({"environment": environment, "samples": raw, "checks": verdicts}, indent=1) + "\n")
    return path


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _beside(arguments: argparse.Namespace) -> Beside:
    return Beside(
        alone=arguments.alone,
        theirs_up_to=arguments.kube_proxy_up_to,
        starts=arguments.starts,
        updates=arguments.updates,
        idle=arguments.idle,
        burst=arguments.burst,
        rate=arguments.rate,
    )


def _topics(text: str) -> tuple[str, ...]:
    asked = text.split(",")
    if unknown := set(asked) - set(plan.TOPICS):
        msg = f"{', '.join(sorted(unknown))}: choose from {', '.join(plan.TOPICS)}"
        raise argparse.ArgumentTypeError(msg)
    return tuple(topic for topic in plan.TOPICS if topic in asked)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        msg = f"{text}: not a whole number from 1 on"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "--sizes", type=_numbers, default=plan.SIZES, metavar="N,N", help=f"numbers of Services {plan.SIZES}"
    )
    parser.add_argument(
        "--repeat", type=_count, default=plan.REPEAT, metavar="N", help="times to measure each (%(default)s)"
    )
    parser.add_argument(
        "--only", type=_topics, default=plan.TOPICS, metavar="TOPIC,TOPIC", help=f"of {', '.join(plan.TOPICS)}"
    )
    parser.add_argument(
        "--changes", type=_count, default=plan.CHANGES, metavar="N", help="Services changed after a load (%(default)s)"
    )
    parser.add_argument(
        "--edits", type=_count, default=plan.EDITS, metavar="N", help="files edited in the folder (%(default)s)"
    )
    beside = parser.add_argument_group("beside kube-proxy", f"for {', '.join(plan.BESIDE)}")
    beside.add_argument("--alone", action="store_true", help="measure nodeproxy alone, without kube-proxy")
    beside.add_argument(
        "--kube-proxy-up-to",
        type=_count,
        default=plan.THEIRS_UP_TO,
        metavar="N",
        help="start kube-proxy with so many Services at most (%(default)s): 30,000 stop a processor for minutes",
    )
    beside.add_argument(
        "--starts", type=_count, default=plan.STARTS, metavar="N", help="starts at the first size (%(default)s)"
    )
    beside.add_argument(
        "--updates", type=_count, default=plan.UPDATES, metavar="N", help="slices changed one by one (%(default)s)"
    )
    beside.add_argument(
        "--idle", type=_count, default=plan.IDLE, metavar="N", help="seconds without any change (%(default)s)"
    )
    beside.add_argument(
        "--burst", type=_count, default=plan.BURST, metavar="N", help="seconds of changes without a pause (%(default)s)"
    )
    beside.add_argument(
        "--rate",
        type=_count,
        default=plan.RATE,
        metavar="N",
        help="changes a second from the loopback server (%(default)s)",
    )
    parser.add_argument(
        "--programs",
        action="store_true",
        help="only build Kubernetes' programs if a chosen topic needs them, print their folder, and end",
    )
    parser.add_argument("--no-check", action="store_true", help="print figures, expect nothing")
    parser.add_argument(
        "--json-dir",
        type=Path,
        default=Path(".cache-bench"),
        metavar="DIR",
        help="where the JSON goes (%(default)s; make gives its own)",
    )
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # so that the measurement under way ends with it
    sys.exit(main(sys.argv[1:]))
