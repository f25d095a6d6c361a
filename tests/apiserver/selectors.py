"""Label and field selectors, as far as they are asked for here."""

from collections.abc import Callable, Mapping

Selector = Callable[[Mapping[str, str]], bool]


class BadSelectorError(Exception):
    """A selector that can't be read, or asks for a field that the resource does not offer."""


def labels(text: str) -> Selector:
    """``!key``, ``key``, ``key=value`` and ``key!=value``, separated by commas.

    Raises:
        BadSelectorError: it is none of these.
    """
    return _all([_label(term.strip()) for term in text.split(",") if term.strip()])


def fields(text: str, allowed: tuple[str, ...]) -> Selector:
    """``field=value`` and ``field!=value``, separated by commas.

    Raises:
        BadSelectorError: it is none of these, or asks for another field than those allowed.
    """
    terms = []
    for term in filter(None, text.split(",")):
        name, value, wanted = _comparison(term)
        if name not in allowed:
            raise BadSelectorError(f"field label not supported: {name}")
        terms.append(_compares(name, value, wanted))
    return _all(terms)


def _all(terms: list[Selector]) -> Selector:
    return lambda values: all(term(values) for term in terms)


def _label(term: str) -> Selector:
    if "=" in term:
        return _compares(*_comparison(term))
    if term.startswith("!"):
        return lambda values: term[1:].strip() not in values
    if any(character.isspace() for character in term):
        raise BadSelectorError(f"unable to parse requirement: {term!r} is not supported here")
    return lambda values: term in values


def _comparison(term: str) -> tuple[str, str, bool]:
    name, sign, value = term.partition("=")
    if not sign:
        raise BadSelectorError(f"invalid selector: {term!r}; can't understand it")
    wanted = not name.endswith("!")
    return name.rstrip("!").strip(), value.removeprefix("=").strip(), wanted


def _compares(name: str, value: str, wanted: bool) -> Selector:
    return lambda values: (values.get(name) == value) is wanted
