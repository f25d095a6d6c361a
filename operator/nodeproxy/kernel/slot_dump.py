"""What slot maps hold, as dumped by the kernel: kept packed, and spelled out a map at a time.

10,000 Services of 10 endpoints fill 100,000 slots. As objects, all at once, they would take more memory than the plan.
"""

import array
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping

from nodeproxy.kernel import netlink
from nodeproxy.kernel.netlink import attributes, each_attribute
from nodeproxy.kube.addresses import Family, canonical_address
from nodeproxy.ruleset.rules import DROP, Target

_GOTO, _DROP = -4, 0
_ATTRIBUTE = struct.Struct("=HH")


def verdict_of(data: netlink.Attributes, unknown: str) -> str | None:
    """The verdict in an element's data; None if there is none.

    Returns:
        ``drop``, the chain to go to, or ``unknown`` and a number.
    """
    if 2 not in data:
        return None
    verdict = attributes(data[2])
    code = int.from_bytes(verdict[1], "big", signed=True)
    if code == _GOTO:
        return netlink.text(verdict[2])
    return DROP if code == _DROP else f"{unknown}{code}"


class DumpedSlots(Mapping[str, Mapping[int, Target | str]]):
    """What each slot map holds, by slot; a map is spelled out each time it is asked for.

    Args:
        family: the family of the addresses.
        unknown: what verdicts begin with that this program never writes.
    """

    def __init__(self, family: Family, unknown: str) -> None:
        self._address = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        self._width = 4 if family is Family.IPV4 else 16
        self._unknown = unknown
        self._maps: dict[str, tuple[array.array[int], bytes | tuple[str, ...]]] = {}

    def add(self, name: str, messages: Iterable[memoryview], names: Mapping[str, str]) -> int:
        """Take the dump of a map.

        Args:
            name: the map's name.
            messages: the lists of elements in each message.
            names: names of chains that are in memory already, by themselves.

        Returns:
            the number behind the last slot that is filled.

        Raises:
            LookupError, ValueError: it holds something that this program never writes.
        """
        slots, values, verdicts = array.array("I"), bytearray(), []
        for message in messages:
            if self._add_plain(message, slots, values):
                continue
            for _, raw in each_attribute(message):
                element = attributes(raw)
                slots.append(int.from_bytes(attributes(element[1])[1], sys.byteorder))
                data = attributes(element[2])
                verdict = verdict_of(data, self._unknown)
                if verdict is not None:
                    verdicts.append(names.get(verdict, verdict))
                else:
                    values += self._checked(data[1])
        if verdicts and values:
            msg = f"map {name} holds verdicts and addresses"
            raise ValueError(msg)
        self._maps[name] = (slots, tuple(verdicts) if verdicts else bytes(values))
        return max(slots, default=-1) + 1

    def _checked(self, value: memoryview) -> bytes:
        if len(value) != self._width + 4:
            msg = f"an address and port of {len(value)} bytes"
            raise ValueError(msg)
        return bytes(value[: self._width + 2])

    def _add_plain(self, message: memoryview, slots: "array.array[int]", values: bytearray) -> bool:
        """Take elements if all of them are a number, an address and a port, and no more: nearly always."""
        data = self._width + 4
        length = 24 + data  # an element; its key, the key's value; its data, the data's value
        if len(message) % length:
            return False
        head = (
            *(_ATTRIBUTE.pack(size, number) for size, number in ((length, 1), (12, 1), (8, 1))),
            *(_ATTRIBUTE.pack(size, number) for size, number in ((data + 8, 2), (data + 4, 1))),
        )
        before, between = b"".join(head[:3]), b"".join(head[3:])
        found = list(struct.iter_unpack(f"=12sI8s{self._width + 2}s2x", message))
        if any(first != before or second != between for first, _, second, _ in found):
            return False
        slots.extend(slot for _, slot, _, _ in found)
        values += b"".join(value for _, _, _, value in found)
        return True

    def __getitem__(self, name: str) -> Mapping[int, Target | str]:
        slots, values = self._maps[name]
        if isinstance(values, tuple):
            return dict(zip(slots, values, strict=True))
        pairs = struct.iter_unpack(f">{self._width}sH", values)
        return {slot: Target(self._text(address), port) for slot, (address, port) in zip(slots, pairs, strict=True)}

    def _text(self, address: bytes) -> str:
        text = socket.inet_ntop(self._address, address)
        return canonical_address(text) if self._address == socket.AF_INET6 else text

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)
