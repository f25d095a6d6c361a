"""Reading one file of manifests."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from nodeproxy.kube.decode import API_VERSIONS, Decoded, Header, decode, decode_json, read_header, wrong_version
from nodeproxy.kube.notes import show
from nodeproxy.kube.source import Problem
from nodeproxy.kube.yaml_documents import YamlError, load_documents

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_BYTES = 64 * 1024 * 1024
MAX_YAML_BYTES = 4 * 1024 * 1024  # YAML takes a hundred times its size in memory, and a second a megabyte
_MAX_LIST_DEPTH = 8
_TYPED_LISTS = {f"{kind}List": kind for kind in API_VERSIONS}


class ManifestError(Exception):
    """A file that cannot be read as a whole; the message says why, without the file's name."""


@dataclass(slots=True)
class ManifestFile:
    """What one file says.

    Attributes:
        objects: what came of each object that is a proxy's business, in order of appearance.
        ignored: how many objects of which other ``apiVersion kind`` there were.
    """

    objects: list[Decoded] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)


def parse_manifest(data: bytes, name: str) -> ManifestFile:
    """Parse the text of a file.

    Args:
        data: its bytes, UTF-8, at most :data:`MAX_BYTES`.
        name: its name; the suffix ``.json`` means JSON, any other YAML. Origins are ``name#1`` for the first document.

    Raises:
        ManifestError: it is not UTF-8, not JSON or YAML, too big or empty.
    """
    if len(data) > MAX_BYTES:
        msg = f"has more than {MAX_BYTES} bytes"
        raise ManifestError(msg)
    data = data.removeprefix(b"\xef\xbb\xbf")
    head = data[:64].lstrip()
    if not head and not data.strip():
        # Also what a file looks like between the moment an editor cuts it off and the moment it writes.
        msg = "is empty; a file that should hold nothing any more has to be deleted"
        raise ManifestError(msg)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 at byte {error.start + 1}"
        raise ManifestError(msg) from None
    manifest = ManifestFile()
    is_json = os.path.splitext(name)[1].lower() == ".json"  # noqa: PTH122 -- hot
    if (is_json or head.startswith(b"{")) and _parse_one_json(data, f"{name}#1", manifest):
        return manifest
    if not is_json and len(data) > MAX_YAML_BYTES:
        msg = f"has more than {MAX_YAML_BYTES} bytes of YAML: cut it into several files, or make it JSON"
        raise ManifestError(msg)
    try:
        for number, document in enumerate(_documents(text, is_json=is_json), start=1):
            if document is not None:
                _take(document, f"{name}#{number}", manifest)
    except YamlError as error:
        msg = f"is not YAML: {error}"
        raise ManifestError(msg) from None
    return manifest


def _documents(text: str, *, is_json: bool) -> Iterable[Any]:
    if is_json:
        return _json_documents(text)
    if text.lstrip().startswith("{"):
        try:
            return list(_json_documents(text))
        except ManifestError:
            pass  # A flow mapping, or broken; YAML's message fits the name of the file.
    return load_documents(text)


class _List(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    api_version: str | None = msgspec.field(name="apiVersion", default=None)
    items: list[msgspec.Raw] | None = None


_list_decoder = msgspec.json.Decoder(_List)


def _parse_one_json(data: bytes, origin: str, manifest: ManifestFile) -> bool:
    """Take the file if it is exactly one JSON object; the way most files go, and the fastest."""
    try:
        header = read_header(data)
        if not _is_list(header):
            _add(decode_json(data, origin, header=header), manifest)
        elif not _take_plain_list(data, origin, manifest):
            _take(msgspec.json.decode(data), origin, manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _take_plain_list(data: bytes, origin: str, manifest: ManifestFile) -> bool:
    """Take a list that is as it should be and holds no lists: an item at a time, without its tree of dicts.

    Returns:
        whether it was one; if not, nothing was taken.
    """
    try:
        found = _list_decoder.decode(data)
        items = [(read_header(item), item) for item in found.items or ()]
    except msgspec.ValidationError:
        return False  # said in full by who goes through it field by field
    item_kind = _TYPED_LISTS.get(found.kind, "")
    if found.kind != "List" and not item_kind:
        return False
    if found.api_version != (API_VERSIONS[item_kind] if item_kind else "v1"):
        return False
    if any(_is_list(header) for header, _ in items):
        return False
    for index, (header, item) in enumerate(items):
        _add(decode_json(item, f"{origin}.items[{index}]", item_kind, header), manifest)
    return True


def _is_list(header: Header) -> bool:
    return header.kind is not None and header.kind.endswith("List")


def _json_documents(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    position = _skip_blanks(text, 0)
    while position < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            msg = f"is not JSON: {error.msg.lower()}, line {error.lineno}, column {error.colno}"
            raise ManifestError(msg) from None
        except (ValueError, RecursionError) as error:
            msg = f"is not JSON: {error}"
            raise ManifestError(msg) from None
        yield document
        position = _skip_blanks(text, position)


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _refuse_constant(constant: str) -> NoReturn:
    msg = f"{constant} is not a JSON number"
    raise ValueError(msg)


def _take(document: Any, origin: str, manifest: ManifestFile, default_kind: str = "", depth: int = 0) -> None:
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not (kind == "List" or kind in _TYPED_LISTS):
        _add(decode(document, origin, default_kind), manifest)
        return
    item_kind = _TYPED_LISTS.get(kind, "")
    api_version = document.get("apiVersion")
    if api_version != (API_VERSIONS[item_kind] if item_kind else "v1"):
        # Another API's list is as little of our business as its items; another version of ours is reported.
        wanted = API_VERSIONS[item_kind] if item_kind else "v1"
        if isinstance(api_version, str) and api_version.rpartition("/")[0] != wanted.rpartition("/")[0]:
            manifest.ignored[f"{api_version} {kind}"] += 1
        else:
            _refuse(origin, "apiVersion", wrong_version(api_version, kind, wanted), manifest)
        return
    items = document.get("items")
    if items is None:
        return
    if not isinstance(items, list):
        _refuse(origin, "items", f"{show(items)} is not a list", manifest)
    elif depth >= _MAX_LIST_DEPTH:
        _refuse(origin, "items", f"lists are nested more than {_MAX_LIST_DEPTH} deep", manifest)
    else:
        for index, item in enumerate(items):
            _take(item, f"{origin}.items[{index}]", manifest, item_kind, depth + 1)


def _add(decoded: Decoded, manifest: ManifestFile) -> None:
    if decoded.ignored:
        manifest.ignored[decoded.ignored] += 1
    else:
        manifest.objects.append(decoded)


def _refuse(origin: str, path: str, reason: str, manifest: ManifestFile) -> None:
    problem = Problem(origin, "", path, reason, fatal=True)
    manifest.objects.append(Decoded(problems=(problem,), origin=origin))
