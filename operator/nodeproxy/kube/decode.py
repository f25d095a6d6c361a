"""From what was read to typed, clean objects.

Well-formed input takes the fast path straight into structs; the rest is read field by field
(:mod:`nodeproxy.kube.tolerant`). Either way the result is cleaned (:mod:`nodeproxy.kube.clean`). Nothing here raises
for bad input: it is described in problems.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from nodeproxy.kube.clean import clean_object, object_key
from nodeproxy.kube.notes import Notes, Rejected, show
from nodeproxy.kube.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR
from nodeproxy.kube.sharing import share_parts
from nodeproxy.kube.source import ObjectKey, Problem
from nodeproxy.kube.tolerant import convert_tolerantly

_CLASSES: dict[str, type[KubeObject]] = {
    "Service": Service,
    "EndpointSlice": EndpointSlice,
    "Node": Node,
    "ServiceCIDR": ServiceCIDR,
}
API_VERSIONS = {
    "Service": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "Node": "v1",
    "ServiceCIDR": "networking.k8s.io/v1",
}
"""The one apiVersion that is read, per kind."""


_LONGEST_KIND = 200


class Decoded(NamedTuple):
    """What came of one object.

    Attributes:
        object: the clean object; None if it was left out.
        key: its key; None if it could not be read.
        problems: what was left out, and what was read unlike it was written; one is fatal if the object was left out.
        ignored: ``apiVersion kind`` of an object that is none of a proxy's business; then object, key and problems
            are empty.
        origin: where it was read.
    """

    object: KubeObject | None = None
    key: ObjectKey | None = None
    problems: tuple[Problem, ...] = ()
    ignored: str = ""
    origin: str = ""


class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What an object says that it is."""

    api_version: str | None = None
    kind: str | None = None


_header = msgspec.json.Decoder(Header)
_decoders: dict[str, msgspec.json.Decoder[KubeObject]] = {
    kind: msgspec.json.Decoder(cls) for kind, cls in _CLASSES.items()
}


def read_header(data: bytes | msgspec.Raw) -> Header:
    """What an object of JSON says that it is.

    Raises:
        msgspec.DecodeError: it is not JSON, or something else than an object with such fields (a ``ValidationError``).
        UnicodeDecodeError: a text in it is not UTF-8.
        RecursionError: it is nested too deep.
    """
    return _header.decode(data)


def decode_json(
    data: bytes | msgspec.Raw, origin: str, default_kind: str = "", header: Header | None = None
) -> Decoded:
    """Decode and clean one object of JSON.

    Args:
        data: the object; a ``msgspec.Raw`` from a list or an event will do.
        origin: where it was read, for problems.
        default_kind: its kind if it does not say (items of typed lists do not).
        header: what :func:`read_header` makes of it, if that has been called.
    """
    try:
        header = header or _header.decode(data)
        kind = header.kind or default_kind
        if kind in _CLASSES and _says(header.api_version, kind, default_kind):
            return _cleaned(_decoders[kind].decode(data), kind, origin)
    except msgspec.ValidationError:
        pass  # Decoded again below, where it is told what is wrong.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _fatal(origin, None, Rejected("", f"is not JSON: {error}"))
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _fatal(origin, None, Rejected("", f"is not JSON: {error}"))
    return decode(raw, origin, default_kind)


def decode(raw: object, origin: str, default_kind: str = "") -> Decoded:
    """Decode and clean one object that has been parsed into dicts, lists, strings and numbers.

    Args:
        raw: the object; never changed.
        origin: where it was read, for problems.
        default_kind: its kind if it does not say.
    """
    try:
        kind, api_version = _kind_and_version(raw, default_kind)
    except Rejected as rejected:
        return _fatal(origin, None, rejected)
    if not _is_ours(kind, api_version):
        return Decoded(ignored=f"{api_version} {kind}".strip()[:_LONGEST_KIND], origin=origin)
    if not _says(api_version, kind, default_kind):
        reason = wrong_version(api_version, kind, API_VERSIONS[kind])
        return _fatal(origin, key_of(raw, kind), Rejected("apiVersion", reason))
    try:
        obj: KubeObject = msgspec.convert(raw, _CLASSES[kind])
    except (msgspec.ValidationError, RecursionError):
        return _tolerant(raw, kind, origin)
    return _cleaned(obj, kind, origin)


def wrong_version(given: object, kind: str, wanted: str) -> str:
    """What is wrong with an apiVersion that is not the wanted one."""
    what = f"{show(given)} of {kind} is not supported" if given else "is missing"
    return f"{what}: it must be {wanted}"


def key_of(raw: object, default_kind: str = "") -> ObjectKey | None:
    """The key of an object parsed into builtins, or None if it has none (a bookmark, another kind, a bad name)."""
    if not isinstance(raw, Mapping):
        return None
    kind = raw.get("kind") or default_kind
    metadata = raw.get("metadata")
    if not isinstance(kind, str) or kind not in _CLASSES or not isinstance(metadata, Mapping):
        return None
    try:
        return object_key(kind, metadata.get("name"), metadata.get("namespace"))
    except Rejected:
        return None


def _kind_and_version(raw: object, default_kind: str) -> tuple[str, str]:
    if not isinstance(raw, Mapping):
        raise Rejected("", f"{show(raw)} is not an object")
    kind = _text(raw, "kind") or default_kind
    if not kind:
        raise Rejected("kind", "is missing")
    return kind, _text(raw, "apiVersion")


def _is_ours(kind: str, api_version: str) -> bool:
    """Whether it is one of our kinds, in whatever version of its API group; without a version, the kind decides."""
    return kind in _CLASSES and (not api_version or _group(api_version) == _group(API_VERSIONS[kind]))


def _says(api_version: str | None, kind: str, default_kind: str) -> bool:
    return api_version == API_VERSIONS[kind] or (not api_version and kind == default_kind)


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _text(raw: Mapping[Any, Any], field: str) -> str:
    value = raw.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Rejected(field, f"{show(value)} is not a string")
    return value


def _tolerant(raw: object, kind: str, origin: str) -> Decoded:
    key = key_of(raw, kind)
    notes = Notes(origin, str(key) if key else "")
    try:
        obj = convert_tolerantly(raw, _CLASSES[kind], notes)
        return _cleaned(obj, kind, origin, notes)
    except Rejected as rejected:
        return Decoded(key=key, problems=notes.fatal(rejected), origin=origin)


def _cleaned(obj: KubeObject, kind: str, origin: str, notes: Notes | None = None) -> Decoded:
    try:
        key = object_key(kind, obj.metadata.name, obj.metadata.namespace)
    except Rejected as rejected:
        return Decoded(problems=(notes or Notes(origin, "")).fatal(rejected), origin=origin)
    notes = notes or Notes(origin, str(key))
    try:
        obj = clean_object(obj, key, notes)
    except Rejected as rejected:
        return Decoded(key=key, problems=notes.fatal(rejected), origin=origin)
    share_parts(obj)
    return Decoded(obj, key, tuple(notes.problems), origin=origin)


def _fatal(origin: str, key: ObjectKey | None, rejected: Rejected) -> Decoded:
    return Decoded(key=key, problems=Notes(origin, str(key) if key else "").fatal(rejected), origin=origin)
