"""Python decides, templates spell: who changes the rules' text has to look in one place only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodeproxy

PACKAGE = Path(nodeproxy.__file__).parent
NFT = re.compile(
    r"\b(add|create|insert|replace|delete|destroy|flush|list|reset)\s+(table|flowtable|chain|rule|set|map|element|ruleset)s?\b"
    r"|\b([ds]addr|[ds]port|[ds]nat|vmap|masquerade fully|typeof|numgen (random|inc)|meta l4proto|ct state|fib daddr)\b"
)
# libnftables states its version in no other way than in an answer to a command.
ALLOWED = {("kernel/nft.py", "list flowtables ip")}


def constants(source: str) -> Iterator[str]:
    """The string constants of a module, but for docstrings."""
    tree = ast.parse(source)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def statements(source: str) -> set[str]:
    return {text for text in constants(source) if NFT.search(text)}


def test_no_module_holds_a_statement_of_nft() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 40
    found = {(path.relative_to(PACKAGE).as_posix(), text) for path in modules for text in statements(path.read_text())}
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('x = "add table ip t"', {"add table ip t"}),
        ('f(f"add rule {ip} t c accept")', {"add rule "}),
        ('"""The map of add element."""\nx = "ip daddr 192.0.2.1"', {"ip daddr 192.0.2.1"}),
        (
            'def f():\n    """It flushes: flush chain."""\n    return "masquerade fully-random"',
            {"masquerade fully-random"},
        ),
        ("x = 'dnat to', 'goto', 'a map'", {"dnat to"}),
    ],
)
def test_statements_are_found_wherever_they_are_but_in_prose(source: str, found: set[str]) -> None:
    assert statements(source) == found
