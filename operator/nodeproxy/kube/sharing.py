"""Equal parts of objects are kept once.

100,000 endpoints have a handful of different conditions, hints and ports, and as many node names as there are nodes.
The decoder makes each anew; told to share, they take half of the memory. An object is the same before and after to
whoever compares it.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache
from sys import intern
from typing import TypeVar, cast

from msgspec.structs import force_setattr

from nodeproxy.kube.objects import EndpointSlice, KubeObject

_T = TypeVar("_T", bound=Hashable)


@lru_cache(maxsize=4096)
def _first_equal(value: Hashable) -> Hashable:
    return value


# An equal value, the same for all who ask; only for values that nobody changes. Equal ones are of one type here.
_shared = cast("Callable[[_T], _T]", _first_equal)


def share_parts(obj: KubeObject) -> None:
    """Have an object that was just decoded share its parts with those decoded before."""
    if obj.metadata.namespace:
        force_setattr(obj.metadata, "namespace", intern(obj.metadata.namespace))
    if isinstance(obj, EndpointSlice):
        if obj.ports:
            force_setattr(obj, "ports", _shared(obj.ports))
        for entry in obj.endpoints or ():
            if entry.node_name is not None:
                force_setattr(entry, "node_name", intern(entry.node_name))
            if entry.conditions is not None:
                force_setattr(entry, "conditions", _shared(entry.conditions))
            if entry.hints is not None:
                force_setattr(entry, "hints", _shared(entry.hints))
