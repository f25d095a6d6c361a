"""Objects with resource versions, and the history of changes that watches are served from."""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from .resources import BY_KIND, RESOURCES, Resource

Key = tuple[str, str]
"""Namespace (empty for what has none) and name; lists are in this order."""

_NOTHING: Mapping[str, str] = {}


class Record(NamedTuple):
    """One version of an object, encoded once.

    Attributes:
        key: its namespace and name.
        version: its resource version.
        tail: its JSON but for what comes first: kind, apiVersion and metadata.resourceVersion.
        labels: its labels.
        fields: what field selectors may ask for.
    """

    key: Key
    version: int
    tail: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    def item(self) -> bytes:
        """As it stands in a list: without kind and apiVersion."""
        return b'{"metadata":{"resourceVersion":"%d"%b' % (self.version, self.tail)

    def whole(self, resource: Resource, version: int | None = None) -> bytes:
        """As it stands by itself and in events; a deletion's carries the version of the deletion."""
        head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.group_version}","metadata":{{"resourceVersion":"'
        return b'%b%d"%b' % (head.encode(), self.version if version is None else version, self.tail)


class Event(NamedTuple):
    """What happened at a version; ``new`` None: it was deleted."""

    version: int
    old: Record | None
    new: Record | None


class Snapshot(NamedTuple):
    """All objects of a kind, in order, at a version."""

    version: int
    records: Sequence[Record]


class ExpiredError(Exception):
    """A version whose history is gone."""


class Store:
    """What etcd is to an API server. All methods may be called from any thread.

    Args:
        history: events kept for each kind; older ones are forgotten, like those that were compacted.
    """

    def __init__(self, history: int = 20_000) -> None:
        self._history = history
        self._lock = threading.RLock()
        self._changed = {resource.kind: threading.Condition(self._lock) for resource in RESOURCES}
        self._records: dict[str, dict[Key, Record]] = {resource.kind: {} for resource in RESOURCES}
        self._events: dict[str, list[Event]] = {resource.kind: [] for resource in RESOURCES}
        self._floor = {resource.kind: 0 for resource in RESOURCES}  # newest version forgotten, for each kind
        self._snapshots: dict[tuple[str, int], Snapshot] = {}
        self._revision = 100
        self._compacted = 0

    @property
    def revision(self) -> int:
        """The newest resource version there is."""
        with self._lock:
            return self._revision

    # --- changes ---

    def put(self, *objects: Mapping[str, Any]) -> int:
        """Create or replace objects, one version each; returns the last one's. Each says its kind."""
        encoded = [_encode(obj) for obj in objects]
        with self._lock:
            for kind, record in encoded:
                self._put(kind, record)
            for kind in {kind for kind, _ in encoded}:
                self._changed[kind].notify_all()
            return self._revision

    def _put(self, kind: str, record: Record) -> None:
        self._revision += 1
        new = record._replace(version=self._revision)
        self._remember(kind, Event(self._revision, self._records[kind].get(new.key), new))
        self._records[kind][new.key] = new

    def delete(self, kind: str, name: str, namespace: str = "") -> int:
        """Delete an object; returns the version of the deletion.

        Raises:
            KeyError: there is no such object.
        """
        with self._lock:
            record = self._records[kind].pop((namespace, name))
            self._revision += 1
            self._remember(kind, Event(self._revision, record, None))
            self._changed[kind].notify_all()
            return self._revision

    def delete_all(self, kind: str) -> None:
        """Delete all objects of a kind."""
        with self._lock:
            for namespace, name in list(self._records[kind]):
                self.delete(kind, name, namespace)

    def compact(self) -> None:
        """Forget the history: versions before now are expired. Watches that are open go on."""
        with self._lock:
            self._compacted = self._revision
            self._snapshots.clear()

    def _remember(self, kind: str, event: Event) -> None:
        events = self._events[kind]
        events.append(event)
        if len(events) > 2 * self._history:
            self._floor[kind] = events[-self._history - 1].version
            del events[: -self._history]

    # --- reading ---

    def get(self, kind: str, key: Key) -> Record | None:
        """One object as it is now."""
        with self._lock:
            return self._records[kind].get(key)

    def snapshot(self, kind: str, version: int | None = None, *, keep: bool = False) -> Snapshot:
        """All objects of a kind, now or as they were at a version that was kept.

        Args:
            kind: the kind.
            version: None for now.
            keep: whether a later call may ask for it by its version, until the next compaction.

        Raises:
            ExpiredError: it was not kept, or was compacted since.
        """
        with self._lock:
            if version is not None:
                if (kind, version) not in self._snapshots:
                    raise ExpiredError
                return self._snapshots[kind, version]
            records = self._records[kind]
            snapshot = Snapshot(self._revision, [records[key] for key in sorted(records)])
            if keep:
                self._snapshots[kind, snapshot.version] = snapshot
            return snapshot

    def check(self, kind: str, version: int) -> None:
        """Whether a watch can begin at a version.

        Raises:
            ExpiredError: what followed it is not known any more.
        """
        with self._lock:
            if version < max(self._compacted, self._floor[kind]):
                raise ExpiredError

    def since(self, kind: str, version: int, seconds: float) -> tuple[list[Event], int]:
        """What happened to a kind after a version, waiting for it if need be; and the version as of which that is.

        Raises:
            ExpiredError: some of it is not known any more.
        """
        with self._changed[kind]:
            events = self._events[kind]
            if not events or events[-1].version <= version:
                self._changed[kind].wait(seconds)
            if version < self._floor[kind]:
                raise ExpiredError
            return events[bisect_right(events, version, key=lambda event: event.version) :], self._revision

    def wake(self) -> None:
        """Have all who wait in :meth:`since` return."""
        with self._lock:
            for condition in self._changed.values():
                condition.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else reads or changes anything meanwhile."""
        with self._lock:
            yield

    def objects(self, kinds: Iterable[str] = BY_KIND) -> list[dict[str, Any]]:
        """All objects as they are now, with kind, apiVersion and resource version."""
        with self._lock:
            wholes = [record.whole(BY_KIND[kind]) for kind in kinds for record in self._records[kind].values()]
        return [msgspec.json.decode(whole) for whole in wholes]


def _encode(obj: Mapping[str, Any]) -> tuple[str, Record]:
    resource = BY_KIND[obj["kind"]]
    metadata = dict(obj["metadata"])
    metadata.pop("resourceVersion", None)
    key = (metadata.get("namespace", ""), metadata["name"])
    rest = {name: value for name, value in obj.items() if name not in {"kind", "apiVersion", "metadata"}}
    # Both begin with a brace: what follows them is what differs between objects.
    tail = b"," + msgspec.json.encode(metadata)[1:]
    if rest:
        tail += b"," + msgspec.json.encode(rest)[1:]
    else:
        tail += b"}"
    given = metadata.get("labels")
    return resource.kind, Record(
        key=key,
        version=0,
        tail=tail,
        labels=given if isinstance(given, Mapping) else _NOTHING,
        fields={
            "metadata.name": key[1],
            "metadata.namespace": key[0],
            **{field: _field(obj, field) for field in resource.fields},
        },
    )


def _field(obj: Mapping[str, Any], path: str) -> str:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
