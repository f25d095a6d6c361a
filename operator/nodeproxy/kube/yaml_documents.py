"""YAML as Kubernetes reads it: a way to write JSON.

So times and sexagesimal numbers (``1:30``) stay strings, exponents need no dot, and no tag makes anything but what JSON
can hold. Documents that grow beyond measure when their aliases are followed are refused.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

_NOT_JSON = frozenset({"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"})
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_INT = re.compile(r"[-+]?(?:0b[01][01_]*|0o[0-7][0-7_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0[0-7_]*|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_ALIAS_FACTOR = 10
_ALIAS_ALLOWANCE = 100_000
_LONGEST_REASON = 200


class YamlError(ValueError):
    """Text that is not YAML, or not safe to read; the message says where and why, on one line."""


class _Loader(yaml.CSafeLoader):
    """A safe loader whose plain scalars are those of JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- PyYAML's own name and type
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_JSON | _NUMBERS]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def load_documents(text: str) -> Iterator[Any]:
    """The documents of a YAML stream as builtins, None for an empty one.

    Raises:
        YamlError: while iterating.
    """
    try:
        loader = _Loader(text)
    except (yaml.YAMLError, ValueError) as error:
        raise YamlError(_one_line(error)) from None
    may_expand = "&" in text and "*" in text
    try:
        while loader.check_node():
            node = loader.get_node()
            if may_expand and node is not None:
                _refuse_expansion(node)
            yield loader.construct_document(node)
    except YamlError:
        raise
    except Exception as error:  # explicit tags (`!!int ""`) make the library's constructors raise all sorts of things
        raise YamlError(_one_line(error)) from None
    finally:
        loader.dispose()


def _refuse_expansion(root: yaml.Node) -> None:
    """Refuse a document whose aliases contain themselves, or multiply it far beyond its size as written."""
    sizes: dict[int, int] = {}
    started: set[int] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        if id(node) in sizes:
            stack.pop()
            continue
        children = _children(node)
        if id(node) not in started:
            started.add(id(node))
            for child in children:
                if id(child) in started and id(child) not in sizes:
                    msg = f"an alias contains itself, line {child.start_mark.line + 1}"
                    raise YamlError(msg)
                if id(child) not in sizes:
                    stack.append(child)
        else:
            stack.pop()
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
    expanded = sizes[id(root)]
    if expanded > _ALIAS_FACTOR * len(sizes) + _ALIAS_ALLOWANCE:
        msg = f"its aliases expand {len(sizes)} values to {expanded}, which is refused"
        raise YamlError(msg)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = " ".join((error.problem or error.context or "syntax error").split())[:_LONGEST_REASON]
        return f"{what}, line {mark.line + 1}, column {mark.column + 1}" if mark else what
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    what = " ".join(str(error).split())
    if not isinstance(error, yaml.YAMLError):  # its own words, as "string index out of range", say little
        what = f"a value can't be read, or does not fit its tag ({type(error).__name__}: {what})"
    return what[:_LONGEST_REASON]
