"""Reading an object field by field after its fast decoding failed.

One entry of a list with a wrong type costs that entry, one optional field costs that field. Where a default would
let in more than was meant, the damage spreads upwards instead: to the entry, and in the end to the object.
"""

import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from nodeproxy.kube import objects
from nodeproxy.kube.notes import Notes, Rejected, show

_COSTS_OWNER = frozenset(
    {
        # Whose object it is: its default would make this proxy serve what another one should.
        (objects.ObjectMeta, "namespace"),
        (objects.ObjectMeta, "labels"),
        (objects.Labels, "service_name"),
        (objects.Labels, "service_proxy_name"),
        (objects.Labels, "headless"),
        # Who may come in and where traffic may go.
        (objects.ObjectMeta, "annotations"),
        (objects.Annotations, "load_balancer_source_ranges"),
        (objects.ServiceSpec, "type"),
        (objects.ServiceSpec, "external_traffic_policy"),
        (objects.ServiceSpec, "internal_traffic_policy"),
        # A port or endpoint under a wrong name, protocol or condition is worse than one missing.
        (objects.ServicePortSpec, "name"),
        (objects.ServicePortSpec, "protocol"),
        (objects.EndpointPort, "name"),
        (objects.EndpointPort, "port"),
        (objects.EndpointPort, "protocol"),
        (objects.EndpointEntry, "conditions"),
        (objects.EndpointConditions, "ready"),
        (objects.EndpointConditions, "serving"),
        (objects.EndpointConditions, "terminating"),
        (objects.LoadBalancerIngress, "ip"),
        (objects.LoadBalancerIngress, "ip_mode"),
    }
)
_CLOSED_WHEN_UNREADABLE = (objects.ServiceSpec, "load_balancer_source_ranges")


class _Field(NamedTuple):
    name: str
    wire: str
    type: Any
    required: bool
    costs_owner: bool


@functools.cache
def _fields(cls: type[msgspec.Struct]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            name=field.name,
            wire=field.encode_name,
            type=_without_none(field.type),
            required=field.required,
            costs_owner=field.required or (cls, field.name) in _COSTS_OWNER,
        )
        for field in msgspec.structs.fields(cls)
    )


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in {types.UnionType, typing.Union}:
        (annotation,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return annotation


def convert_tolerantly(raw: object, cls: type[objects.KubeObject], notes: Notes) -> objects.KubeObject:
    """Convert builtins into a struct, leaving out and noting what does not convert.

    Raises:
        Rejected: something the whole object depends on cannot be read.
    """
    converted = _struct(raw, cls, "", notes)
    return typing.cast("objects.KubeObject", converted)


def _struct(raw: object, cls: type[msgspec.Struct], path: str, notes: Notes) -> msgspec.Struct:
    if not isinstance(raw, Mapping):
        raise Rejected(path, f"{show(raw)} is not an object")
    values: dict[str, Any] = {}
    for field in _fields(cls):
        where = f"{path}.{field.wire}" if path else field.wire
        value = raw.get(field.wire)
        if value is None:  # The API treats null as absent.
            if field.required:
                raise Rejected(where, "is missing")
            continue
        try:
            values[field.name] = _value(value, field.type, where, notes)
        except Rejected as rejected:
            if field.costs_owner:
                raise
            notes.add(rejected.field, rejected.reason)
        if (cls, field.name) == _CLOSED_WHEN_UNREADABLE and value != [] and not values.get(field.name):
            values[field.name] = ("",)  # Given, but no range: cleaning closes it.
    return cls(**values)


def _value(raw: object, wanted: Any, path: str, notes: Notes) -> Any:
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return _struct(raw, wanted, path, notes)
    if typing.get_origin(wanted) is tuple:
        return _list(raw, typing.get_args(wanted)[0], path, notes)
    try:
        return msgspec.convert(raw, wanted)
    except msgspec.ValidationError:
        raise Rejected(path, f"{show(raw)} is not {_describe(wanted)}") from None


def _list(raw: object, wanted: Any, path: str, notes: Notes) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):
        raise Rejected(path, f"{show(raw)} is not a list")
    values, indexes = [], []
    for index, entry in enumerate(raw):
        try:
            values.append(_value(entry, wanted, f"{path}[{index}]", notes))
            indexes.append(index)
        except Rejected as rejected:
            notes.add(rejected.field, rejected.reason)
    if len(values) != len(raw):
        notes.kept(path, indexes)
    return tuple(values)


def _describe(wanted: Any) -> str:
    if typing.get_origin(wanted) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(wanted))
    return {int: "an integer", bool: "true or false"}.get(wanted, "a string")
