"""What a person reads: how fates differ, and what came up."""

from collections.abc import Iterable

from cluster.differential.cells import Cell, every_cell
from cluster.differential.generate import every_trait
from cluster.differential.ground import ORIGINS
from cluster.differential.known import Difference
from cluster.differential.laboratory import Result
from cluster.differential.questions import Frontend

_SHOWN = 10


def report(result: Result) -> str:
    """The differences of a seed that nothing explains: Service, flow, both fates, and the rules of both."""
    count = len(result.differences)
    lines = [f"seed {result.seed}: {count} of {len(result.fates)} flows have another fate with nodeproxy"]
    lines.append(f"both are configured with {result.settings}")
    for found in result.differences[:_SHOWN]:
        lines += ["", *_describe(found, result)]
    if count > _SHOWN:
        lines += ["", f"and {count - _SHOWN} more:"]
        lines += [f"    {one.question.service}: {one.question}" for one in result.differences[_SHOWN:]]
    return "\n".join(lines)


def _describe(found: Difference, result: Result) -> Iterable[str]:
    question = found.question
    made = next((one for one in result.made if question.service.endswith(f"/{one.name}")), None)
    yield f"Service {question.service} ({made.cell})" if made else "no Service"
    if made:
        yield f"    {', '.join(sorted(map(str, made.traits)))}"
    yield f"    port {question.port_name!r}: {question}"
    yield f"    kube-proxy: {found.theirs}"
    yield f"    nodeproxy:  {found.ours}"
    for name, rules in zip(("kube-proxy", "nodeproxy"), result.rules.get(question, ("", "")), strict=True):
        yield f"    rules of {name}:"
        yield from (f"        {line}" for line in rules.splitlines())


def missing_cells(results: Iterable[Result]) -> list[str]:
    """The cells that no seed had a Service for that the API server took."""
    seen: set[Cell] = {made.cell for result in results for made in result.made}
    return [str(cell) for cell in every_cell() if cell not in seen]


def unasked_cells(results: Iterable[Result]) -> list[str]:
    """The cells that no flow was sent to, of those that a proxy has anything to do with."""
    asked = set()
    for result in results:
        services = {question.service.partition("/")[2] for question in result.fates}
        asked |= {made.cell for made in result.made if made.name in services}
    return [str(cell) for cell in every_cell() if cell.kind.served and cell not in asked]


def missing_traits(results: Iterable[Result]) -> list[str]:
    """What may be drawn for a Service and never was."""
    return sorted(every_trait() - {trait for result in results for made in result.made for trait in made.traits})


def missing_ways(results: Iterable[Result]) -> list[str]:
    """Who never dialled, and what was never dialled."""
    questions = [question for result in results for question in result.fates]
    wanted = {*ORIGINS, *(frontend.value for frontend in Frontend)}
    return sorted(wanted - {q.origin for q in questions} - {q.frontend.value for q in questions})
