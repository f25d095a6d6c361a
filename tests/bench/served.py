"""The made-up cluster on a loopback server of the tests, in a process of its own.

usage: python -m bench.served SERVICES KUBECONFIG

It says that it is ready, then does what each line of its standard input says, until that ends:

    one                     one change; answers with it
    replay RATE SECONDS     so many changes a second; answers with all of them
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Self

from apiserver.server import ApiServer
from bench import cluster, own_process
from bench.errors import BenchError
from bench.writers import Change, Changes
from netns.namespaces import Namespace

_PATIENCE = 120.0


class Served:
    """The server, in the network namespace of a proxy, while the ``with`` statement lasts.

    Args:
        namespace: where it listens on loopback.
        services: how many Services it has.
        folder: where its kubeconfig is written.

    Attributes:
        kubeconfig: leads to it.
        changes: which slices were changed.
    """

    def __init__(self, namespace: Namespace, services: int, folder: Path) -> None:
        self._namespace, self._services = namespace, services
        self._said: Queue[str] = Queue()
        self.kubeconfig = folder / "loopback.kubeconfig"
        self.changes = Changes(services, lambda _: None)

    def __enter__(self) -> Self:
        words = own_process("bench.served", self._services, self.kubeconfig)
        with self._namespace.enter():
            # It ends with its standard input, and so with this process.
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, name="served", daemon=True)
        self._thread.start()
        try:
            self._answer(_PATIENCE)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def one(self) -> Change:
        """Have one slice changed.

        Raises:
            BenchError: the server has ended, or is stuck.
        """
        return self._noted(self._ask("one", 30))[0]

    def replay(self, rate: int, seconds: float, at: Callable[[float], None]) -> list[Change]:
        """Have slices changed at a steady rate.

        Args:
            rate: changes a second.
            seconds: how long.
            at: is called about each second with the seconds that have passed.

        Raises:
            BenchError: the server has ended, or is stuck.
        """
        began = time.monotonic()
        self._send(f"replay {rate} {seconds}")
        while True:
            at(time.monotonic() - began)
            try:
                line = self._said.get(timeout=1)
            except Empty:
                if time.monotonic() - began > seconds + _PATIENCE:
                    msg = "the loopback server does not answer"
                    raise BenchError(msg) from None
                continue
            return self._noted(self._checked(line))

    def _noted(self, line: str) -> list[Change]:
        made = [Change(*found) for found in json.loads(line)]
        for change in made:
            self.changes.note(change)
        return made

    def _ask(self, words: str, timeout: float) -> str:
        self._send(words)
        return self._answer(timeout)

    def _send(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def _answer(self, timeout: float) -> str:
        try:
            return self._checked(self._said.get(timeout=timeout))
        except Empty:
            msg = f"the loopback server did not answer within {timeout:g} s"
            raise BenchError(msg) from None

    def _checked(self, line: str) -> str:
        if not line:
            msg = f"the loopback server ended with exit code {self._process.wait(10)}"
            raise BenchError(msg)
        return line

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._said.put(line)
        self._said.put("")

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._thread.join(10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def main(services: int, kubeconfig: Path) -> None:
    """Serve until standard input ends."""
    with ApiServer() as server:
        for document in cluster.objects(services):
            server.put(json.loads(document))
        server.kubeconfig(kubeconfig)
        changes = Changes(services, server.put)
        print("ready", flush=True)
        for line in sys.stdin:
            match line.split():
                case ["one"]:
                    made = [changes.make()]
                case ["replay", rate, seconds]:
                    made = changes.replay(int(rate), float(seconds))
                case words:
                    sys.exit(f"what is {words}?")
            print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
