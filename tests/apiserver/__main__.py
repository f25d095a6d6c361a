"""Serves a made-up or a given cluster from a process of its own, and changes it on command.

The first line of standard output is JSON: ``{"url": …, "objects": …}``. Then commands are read from standard input, one
line of JSON each, and answered by one line; the end of input ends the server. Commands:

``{"do": "replay", "per_second": 1000, "seconds": 30}``
    changes EndpointSlices, one after the other, at a rate; answers ``{"updates": …, "seconds": …}``.
``{"do": "put", "object": {…}}`` and ``{"do": "delete", "kind": …, "namespace": …, "name": …}``
    answer ``{"version": …, "at": …}``, the time as of ``time.monotonic()`` (which all processes share).
``{"do": "get", "kind": …}``
    answers with all objects of a kind.
``{"do": "requests"}``
    answers how many lists and watches there were, of each kind.
"""

import argparse
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

from . import made_up
from .answers import Settings
from .server import ApiServer, kind_of


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m apiserver", description=__doc__.partition("\n")[0])
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--endpoints", type=int, default=10, help="of each Service")
    parser.add_argument("--node", default="node-0", help="name of the Node")
    parser.add_argument("--objects", type=Path, help="JSON lines with the objects to serve in place of made-up ones")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig to this file")
    parser.add_argument("--bookmark-seconds", type=float, default=60.0)
    options = parser.parse_args()
    with ApiServer(settings=Settings(bookmark_seconds=options.bookmark_seconds)) as server:
        if options.objects:
            objects = [json.loads(line) for line in options.objects.read_text().splitlines() if line.strip()]
        else:
            objects = list(made_up.cluster(options.services, options.endpoints, options.node))
        server.put(*objects)
        slices = [obj for obj in objects if obj["kind"] == "EndpointSlice"]
        if options.kubeconfig:
            server.kubeconfig(options.kubeconfig)
        _say({"url": server.url, "objects": len(objects)})
        del objects
        for line in sys.stdin:
            _say(_obey(server, json.loads(line), slices))


def _obey(server: ApiServer, command: dict[str, Any], slices: list[dict[str, Any]]) -> object:
    match command:
        case {"do": "replay", "per_second": rate, "seconds": seconds}:
            return _replay(server, slices, rate, seconds)
        case {"do": "put", "object": obj}:
            return {"version": server.put(obj), "at": time.monotonic()}
        case {"do": "delete", "kind": kind, "namespace": namespace, "name": name}:
            return {"version": server.delete(kind, name, namespace), "at": time.monotonic()}
        case {"do": "get", "kind": kind}:
            return server.store.objects([kind])
        case {"do": "requests"}:
            return dict(collections.Counter(f"{kind_of(request)} {request.verb}" for request in server.requests))
    raise SystemExit(f"not understood: {command}")


def _replay(server: ApiServer, slices: list[dict[str, Any]], rate: float, seconds: float) -> dict[str, float]:
    """Change slices at a rate: the last endpoint of each gets another address, a different one each time round."""
    started = time.monotonic()
    total = int(rate * seconds)
    done = 0
    while done < total:
        due = min(total, int((time.monotonic() - started) * rate) + 1)
        server.put(*(_changed(slices, number) for number in range(done, due)))
        done = due
        ahead = started + done / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    return {"updates": done, "seconds": time.monotonic() - started}


def _changed(slices: list[dict[str, Any]], number: int) -> dict[str, Any]:
    turn, index = divmod(number, len(slices))
    obj = slices[index]
    *others, last = obj["endpoints"] or [{"addresses": ["192.0.2.1"]}]
    address = f"198.18.{turn % 250}.{index % 250 + 1}"
    return {**obj, "endpoints": [*others, {**last, "addresses": [address]}]}


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


main()
