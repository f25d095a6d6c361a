"""Objects that are almost right: made-up ones of which something has been changed, taken away or put in."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from unit.kube.test_decode_properties import anything, texts

from . import objects
from .objects import Raw

_Place = tuple[Any, Any]
"""A dict or list, and a key or index in it."""


def _places(value: Any) -> Iterator[_Place]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(inner)


def _remove(_: st.DrawFn, place: _Place) -> None:
    del place[0][place[1]]


def _replace(draw: st.DrawFn, place: _Place) -> None:
    place[0][place[1]] = draw(anything)


def _say_otherwise(draw: st.DrawFn, place: _Place) -> None:
    place[0][place[1]] = draw(texts)


def _spoil_text(draw: st.DrawFn, place: _Place) -> None:
    """Put a character into a text; of a number, the text."""
    text = str(place[0][place[1]])[:200]
    at = draw(st.integers(0, len(text)))
    place[0][place[1]] = text[:at] + draw(st.sampled_from(list("\0\n\t \"'\\{}#;:/.@-0aZé\u2028"))) + text[at:]


def _change_number(draw: st.DrawFn, place: _Place) -> None:
    number = place[0][place[1]]
    if isinstance(number, int):
        place[0][place[1]] = draw(st.sampled_from([number + 1, -number, number + 0.5, float(number), 1 << 40, True]))
    else:
        place[0][place[1]] = draw(st.integers(-1, 70_000))


def _repeat(draw: st.DrawFn, place: _Place) -> None:
    """A list has an entry twice or very often; anything else becomes a list of itself."""
    value = place[0][place[1]]
    if isinstance(place[0], list):
        place[0][place[1] : place[1]] = [copy.deepcopy(value) for _ in range(draw(st.sampled_from([1, 1, 2, 30])))]
    else:
        place[0][place[1]] = [value]


def _swap(draw: st.DrawFn, place: _Place) -> None:
    """Two values of one dict or list change places."""
    container = place[0]
    other = draw(st.sampled_from(sorted(container) if isinstance(container, dict) else range(len(container))))
    container[place[1]], container[other] = container[other], container[place[1]]


_MUTATIONS: tuple[Callable[[st.DrawFn, _Place], None], ...] = (
    _remove,
    _replace,
    _say_otherwise,
    _spoil_text,
    _change_number,
    _repeat,
    _swap,
)


@st.composite
def mutated(draw: st.DrawFn) -> Raw:
    """An object with one to four mutations. Its kind is left alone, as that only makes it somebody else's business."""
    valid = st.one_of(objects.services(), objects.slices(), objects.nodes(), objects.service_cidrs())
    raw: Raw = copy.deepcopy(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        places = [place for place in _places(raw) if place[0] is not raw or place[1] not in ("kind", "apiVersion")]
        if places:
            draw(st.sampled_from(_MUTATIONS))(draw, places[draw(st.integers(0, len(places) - 1))])
    return raw
