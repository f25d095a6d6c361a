"""Shows what nodeproxy does: real connections to the Services in ``manifests``, in a small world of namespaces.

Two nodes, a pod for each endpoint that answers with its name, and a client outside are made out of network
namespaces; nodeproxy runs on node-a. Needs root, or a kernel that lets users make user namespaces. Nothing is left
behind but a copy of the manifests as they are in the end, for the command lines shown. Exit code 0: every Service
answered as it should.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests"))

from shop import Frontend, Shop  # noqa: E402

from netns import privileges  # noqa: E402
from netns.agent import CLUSTER_CIDR, TABLE, Agent  # noqa: E402
from netns.manifests import ManifestFolder  # noqa: E402
from netns.probe import Answer, Flow, Outcome, Rejected, probe  # noqa: E402
from netns.servers import Server  # noqa: E402
from netns.world import Host, World  # noqa: E402

MANIFESTS = HERE / "manifests"
NODE = "node-a"
TRIES = 12
KILLED = "frontend-2"
SHOWN = "default/frontend"
LEGEND = f"""\
  How to read it: "-1:5  -2:7" says that of {TRIES} connections pod 1 of the Service (checkoutservice-1) answered 5, and
  pod 2 answered 7; frontend-external has the pods of frontend. "dropped" and "rejected" stand where the Service lets
  nobody in, or has no pod. "other net": the client outside has an address that the Service's source ranges exclude.
  "(!)" would mark what is not as it should be.
"""


def say(text: str = "") -> None:
    """Print a line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def step(text: str) -> Iterator[None]:
    """Print what is being done, and how long it took."""
    sys.stdout.write(f"  {text} … ")
    sys.stdout.flush()
    started = time.monotonic()
    yield
    say(f"{(time.monotonic() - started) * 1000:.0f} ms")


def outcome_name(outcome: Outcome) -> str:
    """A pod's name, or in a word what happened instead."""
    return outcome.name if isinstance(outcome, Answer) else type(outcome).__name__.lower()


def short(counts: Counter[str], service: str) -> str:
    """Who answered how often, in few letters: ``-1:5  -2:7``; before the dash belongs the Service's name."""
    names = sorted(counts)
    return "  ".join(f"{name.removeprefix(service.removesuffix('-external'))}:{counts[name]}" for name in names)


def nodeproxy() -> list[str]:
    """The words that start nodeproxy from the root of the repository."""
    script = Path(sys.executable).with_name("nodeproxy")
    if not script.exists():
        return [sys.executable, "-m", "nodeproxy"]
    return [str(script.relative_to(ROOT) if script.is_relative_to(ROOT) else script)]


class Demo:
    """The world, the agent on one of its nodes, and what has gone wrong so far."""

    def __init__(self, stack: ExitStack) -> None:
        self.shop = Shop(MANIFESTS)
        self.failures: list[str] = []
        with step(f"two nodes, {len(self.shop.pods)} pods and a client outside"):
            names = [[pod for pod, node in self.shop.pods.items() if node == name] for name in ("node-a", "node-b")]
            self.world = stack.enter_context(World(pods=names))
            self.servers = self._serve()
        self.folder = ManifestFolder()
        stack.callback(self.folder.close)
        shutil.copytree(MANIFESTS, self.folder.path, dirs_exist_ok=True)
        with step(f"nodeproxy runs on {NODE} and reads a copy of demo/manifests, until the kernel has all rules"):
            self.agent = stack.enter_context(Agent(self.world.node(NODE), [CLUSTER_CIDR], self.folder))

    def _serve(self) -> dict[str, Server]:
        servers = {}
        for backend in self.shop.backends:
            pod = self.world.pod(backend.pod)
            if backend.address not in pod.addresses:
                message = f"{backend.pod} is at {pod.addresses}, not at {backend.address} as the manifest says"
                raise SystemExit(message)
            key = f"{backend.pod}/{backend.port}"
            if key not in servers:
                servers[key] = pod.serve(backend.port, [backend.protocol])
        return servers

    def table(self, frontends: Sequence[Frontend]) -> None:
        """Connect to frontends from a pod, the node and outside, and print who answered how often."""
        node = self.world.node(NODE)
        origins: list[tuple[str, Host]] = [
            ("from a pod", next(iter(node.pods.values()))),
            ("from the node", node),
            ("from outside", self.world.client),
        ]
        widths = (23, 30, 23, 23, 23)
        heads = ("SERVICE", "FRONTEND", *(title.upper() for title, _ in origins))
        say("  " + "".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)).rstrip())
        for frontend in frontends:
            cells = [frontend.service.partition("/")[2], str(frontend)]
            for title, origin in origins:
                counts = self.connect(frontend, origin)
                fault = self.fault(frontend, title, counts)
                if fault:
                    self.failures.append(f"{frontend.service} {frontend} {title}: {fault}: {dict(counts)}")
                cells.append(short(counts, cells[0]) + (" (!)" if fault else ""))
            say("  " + "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())

    def connect(self, frontend: Frontend, origin: Host) -> Counter[str]:
        """Connect to a frontend several times, and count what happened."""
        source = frontend.source if origin is self.world.client else None
        flow = Flow(origin.namespace, frontend.address, frontend.port, frontend.protocol, source)
        outcomes = probe([flow] * TRIES, 0.3)
        return Counter(outcome_name(outcome) for outcome in outcomes)

    def fault(self, frontend: Frontend, origin: str, counts: Counter[str]) -> str:
        """What is wrong with the answers; empty if nothing."""
        if frontend.closed_to(origin):
            return "" if set(counts) == {"dropped"} else "should have been dropped"
        pods = self.shop.pods_of(frontend)
        if not pods:
            return "" if set(counts) == {Rejected.__name__.lower()} else "should have been rejected"
        if frontend.local_only and origin == "from outside":
            pods = {pod for pod in pods if self.shop.pods[pod] == NODE}
        if not set(counts) <= pods:
            return "not everything was answered by the right pods"
        if frontend.sticky and len(counts) != 1:
            return "the client should have stayed with one pod"
        return ""

    def kill(self, pod: str) -> None:
        """End a pod, take it out of the manifests, and wait until connections no longer go there."""
        frontends = [frontend for frontend in self.shop.frontends if pod in self.shop.pods_of(frontend)]
        with step(f"{pod} no longer listens, and its endpoint is removed from the copy of the manifests"):
            for key, server in self.servers.items():
                if key.startswith(f"{pod}/"):
                    server.close()
            self.shop.remove(pod, self.folder)
            self.agent.settle()
        self.table(frontends)

    def rules(self, service: str) -> None:
        """Show a Service's rules as nodeproxy means them, and as the kernel has them."""
        say("As nodeproxy means them; this neither asks nor changes the kernel:")
        flags = [f"--manifests={self.keep()}", f"--hostname-override={NODE}", CLUSTER_CIDR]
        self.show(*nodeproxy(), "render", *flags, "--family=IPv4", f"--service={service}")
        say(f"As the kernel of {NODE} has them, where all Services share the slots:")
        name = next(name for name in self.agent.chains(4) if f"-{service}/" in name)
        chain = self.show("nft", "list", "chain", "ip", TABLE, name)
        found = re.search(r"numgen random mod (\d+) offset (\d+) map @(\S+)", chain)
        if found is None:
            self.failures.append(f"{name} does not choose from slots")
            return
        first = int(found[2])
        slots = ", ".join(str(slot) for slot in range(first, first + int(found[1])))
        elements = self.show("nft", "get", "element", "ip", TABLE, found[3], f"{{ {slots} }}")
        backends = [backend for backend in self.shop.backends if backend.service == service]
        pods = {f"{backend.address} . {backend.port}": backend.pod for backend in backends}
        for slot, target in re.findall(r"(\d+) : (\S+ \. \d+)", elements):
            if target not in pods:
                self.failures.append(f"slot {slot} leads to {target}, where no pod of the Service is")
            say(f"slot {slot} is {pods.get(target, 'nobody (!)')}")

    def show(self, *argv: str) -> str:
        """Run a command on the node from the root of the repository; print it and its output, and return that."""
        say(f"$ {shlex.join(argv)}")
        output = self.world.node(NODE).namespace.run(*argv)
        say(output.rstrip() + "\n")
        return output

    def keep(self) -> Path:
        """Copy the manifests, as they are now, to where they stay when the demo is over; returns the folder.

        Where that may not be written, it is the folder that the agent reads, which goes with the demo.
        """
        kept = Path(f".cache-{os.getuid()}", "demo")
        with contextlib.suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            for name in self.shop.files:
                # Renamed into place, in case that two demos run at a time.
                shutil.copyfile(self.folder.path / name, kept / f".{name}.{os.getpid()}")
                (kept / f".{name}.{os.getpid()}").rename(kept / name)
            return kept
        return self.folder.path

    def finish(self) -> None:
        """End the agent, and take its rules away."""
        with step("SIGTERM, then nodeproxy cleanup"):
            code = self.agent.stop()
            self.agent.command("cleanup")
        if code:
            self.failures.append(f"nodeproxy ended with exit code {code}")


def main() -> int:
    """Run the demo and return its exit code."""
    privileges.ensure()
    os.chdir(ROOT)
    started = time.monotonic()
    with ExitStack() as stack:
        say("Building")
        demo = Demo(stack)
        chapters: list[tuple[str, Callable[[], None]]] = [
            (
                f"{TRIES} connections to every Service from each of three places\n{LEGEND}",
                lambda: demo.table(demo.shop.frontends),
            ),
            (f"A pod dies: {KILLED}", lambda: demo.kill(KILLED)),
            (f"The rules of one Service: {SHOWN}", lambda: demo.rules(SHOWN)),
            ("The end", demo.finish),
        ]
        for title, chapter in chapters:
            say(f"\n{title}")
            chapter()
        say()
        for failure in demo.failures:
            say(f"FAILED: {failure}")
        if not demo.failures:
            say(f"Every Service answered as it should. {time.monotonic() - started:.1f} s")
        return 1 if demo.failures else 0


if __name__ == "__main__":
    sys.exit(main())
