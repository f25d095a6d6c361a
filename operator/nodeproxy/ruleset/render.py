"""From values to nft text, through the templates. All nft syntax is theirs; here they are found and their lines read.

A template of a chain yields a statement a line; what stands behind `` # `` becomes the rule's comment. The template of
the base yields blocks (``set NAME {``, ``map NAME {``, ``chain NAME {``), as nft prints them.
"""

import hashlib
import itertools
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import jinja2

from nodeproxy.kube.addresses import Family
from nodeproxy.model.node import LocalDetector
from nodeproxy.ruleset.mirror import SlotUse
from nodeproxy.ruleset.names import MAX_COMMENT, base32, comment, endpoint_map
from nodeproxy.ruleset.operations import (
    AddChain,
    AddClients,
    AddContainer,
    AddElement,
    AddRule,
    FillSlots,
    FreeSlots,
    Operation,
    RemoveElement,
    Rule,
)
from nodeproxy.ruleset.rules import (
    CLUSTER_IPS,
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES,
    NODE_PORT_IPS,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    AffinitySet,
    BalancingChain,
    Chain,
    Element,
    EndpointChain,
    ExternalChain,
    Target,
)

TABLE = "kube-proxy"
TEMPLATES = Path(__file__).parent.parent / "templates"

_WORDS = "words.nft.j2"
_BLOCK = re.compile(r"^(set|map|chain)\s+(\S+)\s*\{$")
_HOOK = re.compile(r"^type\s+\w+\s+hook\s")
_REFERENCE = re.compile(r"@([A-Za-z_.][\w./\\-]*)", re.ASCII)  # to a set or map; what else follows @ names none
_DIGEST_LENGTH = 8
_DISPATCH = {
    CLUSTER_IPS,
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
}  # what Services have elements in, whatever the settings


_CONTAINER_OF: Mapping[type[Operation], Callable[[Any], str]] = {
    FillSlots: attrgetter("map_name"),
    FreeSlots: attrgetter("map_name"),
    AddElement: attrgetter("element.container"),
    RemoveElement: attrgetter("container"),
    AddClients: attrgetter("container"),
}  # of the operations that may share a statement with others on the same container


class TemplateError(Exception):
    """A template that is missing, broken, or yields something that is not what it is for; names the template."""


class RenderError(TemplateError):
    """A template that can be read, but fails for the values it was given; for others it may not."""


@dataclass(frozen=True, slots=True)
class RenderContext:
    """What every template may use, for one table.

    Attributes:
        family: the table's family.
        masquerade_bit: bit of the packet mark, 0..31.
        masquerade_all: masquerade all traffic to ClusterIPs.
        detector: how traffic from local pods is told; None: it can't be.
        node_ports_everywhere: node ports are open on every address but loopback.
        service_cidrs: CIDRs of the family that ClusterIPs come from.
    """

    family: Family
    masquerade_bit: int = 14
    masquerade_all: bool = False
    detector: LocalDetector | None = None
    node_ports_everywhere: bool = False
    service_cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """A set or map as declared: ``kind`` and the lines between its braces."""

    kind: str
    name: str
    lines: tuple[str, ...]

    @property
    def body(self) -> str:
        """The declaration on one line."""
        return " ; ".join(self.lines)


@dataclass(frozen=True, slots=True)
class BaseChain:
    """A chain that no service port owns; ``hook`` is its declaration, if packets enter through it."""

    name: str
    hook: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """All of the table that does not depend on service ports."""

    containers: tuple[Container, ...]
    chains: tuple[BaseChain, ...]

    def has_extra(self, name: str) -> bool:
        """Whether a set or map is one that a changed template has beside ours: what is in it is not ours to judge."""
        ours = name in _DISPATCH or name == NODE_PORT_IPS
        return not ours and any(container.name == name for container in self.containers)


@dataclass(frozen=True, slots=True)
class Probe:
    """Statements that show what the kernel can do.

    Attributes:
        ground: what the others need.
        features: statements, and the feature that each needs.
    """

    ground: tuple[str, ...]
    features: tuple[tuple[str, str], ...]


def digest_of(rules: Iterable[Rule]) -> str:
    """What stands for a chain's rules when chains are compared."""
    return "".join(rule.digest for rule in rules)


class Renderer:
    """Renders the objects of one table.

    Raises:
        TemplateError: a template is missing or broken (also from every method).
    """

    def __init__(self, context: RenderContext, templates: Path = TEMPLATES, table: str = TABLE) -> None:
        self.context = context
        self._folder = templates
        self._environment = _environment(templates)
        self.ip = "ip" if context.family is Family.IPV4 else "ip6"
        # Of the whole environment, not of each template: only then does Jinja2 load what templates import just once.
        self._environment.globals.update(
            ip=self.ip,
            table=table,
            mark=f"0x{1 << context.masquerade_bit:08x}",
            masquerade_all=context.masquerade_all,
            detector=context.detector,
            node_ports_everywhere=context.node_ports_everywhere,
            service_cidrs=context.service_cidrs,
        )
        self._templates: dict[str, Callable[..., str]] = {}
        self._give_words()

    def elsewhere(self, table: str) -> "Renderer":
        """Renders the same for a table of another name; reads the templates anew."""
        return Renderer(self.context, self._folder, table)

    def preload(self) -> None:
        """Read all templates, those that only a changed copy has too; else each is read when it is first needed."""
        for name in sorted({path.name for folder in (TEMPLATES, self._folder) for path in folder.glob("*.nft.j2")}):
            try:
                self._load(name)
            except (jinja2.TemplateError, OSError, UnicodeDecodeError) as error:
                raise self._translated(error, name) from error

    def base(self) -> Base:
        """The base chains, the chains they jump to, and the containers of dispatch elements."""
        containers: list[Container] = []
        chains: list[BaseChain] = []
        name = "base.nft.j2"
        lines = (line.strip() for line in self._text(name).splitlines())
        for line in lines:
            if not line:
                continue
            opening = _BLOCK.match(line)
            if not opening:
                msg = f"{name}: expected the start of a set, map or chain, found {line!r}"
                raise TemplateError(msg)
            body: list[str] = []
            for inner in lines:
                if inner == "}":
                    break
                if inner:
                    body.append(inner)
            else:
                msg = f"{name}: {opening[1]} {opening[2]} is never closed"
                raise TemplateError(msg)
            if opening[1] == "chain":
                hook = body.pop(0).rstrip(";") if body and _HOOK.match(body[0]) else ""
                chains.append(BaseChain(opening[2], hook, tuple(map(_rule, body))))
            else:
                containers.append(Container(opening[1], opening[2], tuple(body)))
        missing = _DISPATCH - {container.name for container in containers}
        if missing or not any(chain.hook for chain in chains):
            # As in a file that is being saved: taken as it is, the table would be emptied.
            msg = f"{name}: declares no {', '.join(sorted(missing)) or 'chain with a hook'}"
            raise TemplateError(msg)
        return Base(tuple(containers), tuple(chains))

    def rules(self, chain: Chain, use: SlotUse | None = None) -> tuple[Rule, ...]:
        """The rules of a service port's chain; ``use``: its slots, if it balances over several endpoints."""
        if isinstance(chain, BalancingChain):
            return self._rules("balancing.nft.j2", chain=chain, use=use)
        if isinstance(chain, EndpointChain):
            return self._rules("endpoint.nft.j2", chain=chain)
        if isinstance(chain, ExternalChain):
            return self._rules("external.nft.j2", chain=chain)
        return self._rules("firewall.nft.j2", chain=chain)

    def affinity_set(self, affinity_set: AffinitySet) -> Container:
        """The set of the clients that stick to an endpoint."""
        return Container("set", affinity_set.name, self._lines("affinity.nft.j2", set=affinity_set))

    def slot_map(self, name: str, size: int) -> Container:
        """A map of ``size`` slots."""
        protocol = next((p for p in ("tcp", "udp", "sctp") if name.startswith(endpoint_map(p))), None)
        return Container("map", name, self._lines("slots.nft.j2", protocol=protocol, size=size))

    def transaction(
        self,
        operations: Sequence[Operation],
        declared: Callable[[str], Container | None] = lambda _: None,
        *,
        making: bool = True,
        apart: bool = False,
    ) -> str:
        """The text of a transaction.

        Args:
            operations: in the order of their stages.
            declared: says how a set or map of the table is declared, by its name; None: it is not known.
            making: whether the table may have to be made; else all is refused if it is not there.
            apart: each element gets a statement of its own; else those of one container share one, of which the
                kernel reports one refusal at most.
        """
        groups = ((type(operation), [operation]) for operation in operations) if apart else _groups(operations)
        text = self._text(
            "transaction.nft.j2",
            groups=[(kind.__name__, group) for kind, group in groups],
            making=making,
            hooked=any(isinstance(operation, AddChain) and operation.hook for operation in operations),
            declared=declared,
            referred=[container for name in _referred(operations) if (container := declared(name)) is not None],
        )
        if not text.strip():  # as while its file is being saved: the kernel would say yes to nothing
            msg = "transaction.nft.j2: yields no statement"
            raise TemplateError(msg)
        return text

    def declarations(self, operations: Sequence[Operation], declared: Callable[[str], Container | None]) -> str:
        """A transaction that only declares the sets and maps that another one declares, new ones and those in place.

        Args:
            operations: of the other one.
            declared: says how a set or map of the table is declared, by its name; None: it is not known.
        """
        names = _named_by_rules(operations)
        for operation in operations:
            if isinstance(operation, AddContainer):
                names[operation.name] = None
            elif isinstance(operation, FillSlots | AddElement | AddClients):
                names[_CONTAINER_OF[type(operation)](operation)] = None
        found = [container for name in names if (container := declared(name)) is not None]
        return self.transaction([AddContainer("", each.kind, each.name, each.body) for each in found])

    def probe(self) -> Probe:
        """Statements that show what the kernel can do."""
        lines = [line.partition(" # ") for line in self._lines("probe.nft.j2")]
        return Probe(
            ground=tuple(statement for statement, remark, _ in lines if not remark),
            features=tuple((statement, feature) for statement, remark, feature in lines if remark),
        )

    def cleanup(self) -> str:
        """A transaction that removes the table, whether or not it is there."""
        return self._text("cleanup.nft.j2")

    def element(
        self,
        key: Sequence[str | int],
        verdict: str | None = None,
        note: str = "",
        target: Target | None = None,
    ) -> str:
        """One element as a listing shows it."""
        return self._text("element.nft.j2", key=key, verdict=verdict, comment=note, target=target).strip()

    def listed(self, element: Element) -> str:
        """A dispatch element as a listing shows it."""
        return self.element(element.key, element.verdict, element.comment)

    def listing(
        self,
        containers: Sequence[tuple[str, str, Sequence[str], Sequence[str]]],
        chains: Sequence[tuple[str, str, Sequence[Rule]]],
    ) -> str:
        """A table as a person reads it and nft takes it.

        Args:
            containers: kind, name, declaration lines and elements of each set or map.
            chains: name, hook and rules of each chain.
        """
        return self._text("listing.nft.j2", containers=containers, chains=chains)

    def _rules(self, template: str, **values: object) -> tuple[Rule, ...]:
        return tuple(map(_rule, self._lines(template, **values)))

    def _lines(self, template: str, **values: object) -> tuple[str, ...]:
        return tuple([line for text in self._text(template, **values).splitlines() if (line := text.strip())])

    def _text(self, template: str, **values: object) -> str:
        try:
            return (self._templates.get(template) or self._load(template))(values)
        except Exception as error:  # expressions in a template fail in as many ways as any program
            raise self._translated(error, template) from error

    def _give_words(self) -> None:
        """Give all templates ``word``: the macros of words.nft.j2, which an import in each would look up each time."""
        try:
            words = self._environment.get_template(_WORDS)
            words.render()  # fails with the line in the template, which the next line does not know
            # Its own as well: Jinja2 makes them anew for an import by a template that has globals which they have not.
            words.globals["word"] = self._environment.globals["word"] = words.module
        except Exception as error:
            raise self._translated(error, _WORDS) from error

    def _load(self, template: str) -> Callable[..., str]:
        render: Callable[..., str] = self._environment.get_template(template).render
        self._templates[template] = render
        return render

    def _translated(self, error: Exception, template: str) -> TemplateError:
        """What went wrong with a template, or with one that it imports."""
        if isinstance(error, jinja2.TemplateNotFound):
            folder = self._folder
            if not folder.is_dir():
                what = "not a directory" if folder.exists() else "no such directory"
                return TemplateError(f"templates {folder}: {what}")
            return TemplateError(f"{folder}/{error.name}: no such template")
        if isinstance(error, jinja2.TemplateSyntaxError):
            return TemplateError(f"{error.name}:{error.lineno}: {error.message}")
        if isinstance(error, OSError | UnicodeDecodeError):
            reason = getattr(error, "strerror", None) or str(error)
            return TemplateError(f"{self._folder}/{template}: {reason}")
        return RenderError(f"{_place(error) or template}: {error}")


def _place(error: Exception) -> str:
    """Name and line of the innermost template that an error went through; empty if it went through none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.suffix == ".j2":
            place = f"{path.name}:{line}"
    return place


class _Environment(jinja2.Environment):
    """Gives templates their globals as one plain dict; the default, a chain of dicts, is slow at 10,000 renderings."""

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        """All globals of a template; ``d``: its own."""
        return {**self.globals, **(d or {})}


def _environment(templates: Path) -> jinja2.Environment:
    return _Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # it is not HTML; what goes in was validated when it was read
        keep_trailing_newline=True,
        auto_reload=False,
    )


@lru_cache(maxsize=256)
def _rule(line: str) -> Rule:
    """A template's line as a rule. Services have some lines in common, hence the cache; most are one Service's own."""
    text, _, note = line.partition(" # ")
    note = comment(note.strip(), MAX_COMMENT - _DIGEST_LENGTH - 2) if note else ""
    raw = hashlib.blake2s(f"{text}\0{note}".encode(), digest_size=5).digest()
    return Rule(text.strip(), note, base32(raw).lower())


def _groups(operations: Iterable[Operation]) -> Iterator[tuple[type[Operation], list[Operation]]]:
    """Operations of one stage, kind and container together; their order is kept otherwise."""
    for _, of_stage in itertools.groupby(operations, attrgetter("stage")):
        groups: dict[tuple[str, type[Operation]], list[Operation]] = {}
        for operation in of_stage:
            kind = type(operation)
            container = container_of(operation) if (container_of := _CONTAINER_OF.get(kind)) else ""
            groups.setdefault((container, kind), []).append(operation)
        for (_, kind), group in sorted(groups.items(), key=lambda entry: entry[0][0]):
            yield kind, group


def _named_by_rules(operations: Iterable[Operation]) -> dict[str, None]:
    """Names of the sets and maps that rules of a transaction name, in order."""
    rules = (operation.rule.text for operation in operations if isinstance(operation, AddRule))
    return dict.fromkeys(name for text in rules for name in _REFERENCE.findall(text))


def _referred(operations: Sequence[Operation]) -> Iterable[str]:
    """Names of the sets and maps that rules of a transaction name and that it does not declare."""
    brought = {operation.name for operation in operations if isinstance(operation, AddContainer)}
    brought.update(operation.map_name for operation in operations if isinstance(operation, FillSlots))
    return [name for name in _named_by_rules(operations) if name not in brought]


def cleanup_text(family: Family, templates: Path = TEMPLATES) -> str:
    """A transaction that removes the table of a family, whether or not it is there."""
    return Renderer(RenderContext(family), templates).cleanup()
