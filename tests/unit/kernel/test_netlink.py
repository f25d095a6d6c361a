"""The netlink socket: what becomes of the kernel's datagrams, good and bad."""

import errno
import socket
import struct
from collections.abc import Iterator

import pytest

from netns.namespaces import Namespace
from nodeproxy.kernel import netlink
from nodeproxy.kernel.netlink import (
    DumpInterruptedError,
    NftSocket,
    attribute_bytes,
    attributes,
    each_attribute,
    text,
)
from nodeproxy.kube.addresses import Family

pytestmark = pytest.mark.usefixtures("namespace")


def message(kind: int, body: bytes, *, sequence: int, flags: int = 0) -> bytes:
    data = struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body
    return data + bytes(-len(data) % 4)


class Wire:
    """Stands in for the socket: takes the request, and hands out datagrams."""

    def __init__(self, *datagrams: bytes) -> None:
        self.datagrams = list(datagrams)
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def recv(self, _: int) -> bytes:
        return self.datagrams.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def sock() -> Iterator[NftSocket]:
    with NftSocket(Family.IPV4) as found:
        found._socket.close()
        yield found


NAME = b"\x02\x00\x00\x00" + attribute_bytes(1, b"abc\0")
DONE = 3
ERROR = 2


def names(sock: NftSocket, wire: Wire) -> list[str]:
    sock._socket = wire  # type: ignore[assignment]
    return [text(attributes(item)[1]) for item in sock.dump(netlink.GET_TABLE, {})]


def test_messages_are_read_over_several_datagrams_until_the_dump_is_done(sock: NftSocket) -> None:
    wire = Wire(
        message(10, NAME, sequence=1) + message(10, NAME, sequence=1),
        message(10, NAME, sequence=1),
        message(DONE, struct.pack("=i", 0), sequence=1),
    )
    assert names(sock, wire) == ["abc"] * 3


def test_messages_that_answer_another_request_are_passed_over(sock: NftSocket) -> None:
    wire = Wire(
        message(10, NAME, sequence=99) + message(DONE, struct.pack("=i", 0), sequence=99),
        message(10, NAME, sequence=1) + message(DONE, struct.pack("=i", 0), sequence=1),
    )
    assert names(sock, wire) == ["abc"]


@pytest.mark.parametrize("kind", [10, DONE])
def test_mark_of_interruption_counts_wherever_it_stands(sock: NftSocket, kind: int) -> None:
    body = NAME if kind == 10 else struct.pack("=i", 0)
    wire = Wire(
        message(10, NAME, sequence=1) + message(kind, body, sequence=1, flags=0x10),
        message(DONE, struct.pack("=i", 0), sequence=1),
    )
    with pytest.raises(DumpInterruptedError):
        names(sock, wire)


class OneAtATime(Wire):
    """Refuses a request while answers to the last one are still to be read, as the kernel does."""

    def __init__(self, *answers: list[bytes]) -> None:
        super().__init__()
        self.answers = list(answers)

    def send(self, data: bytes) -> None:
        super().send(data)
        if self.datagrams:
            self.datagrams.insert(0, message(ERROR, struct.pack("=i", -errno.EBUSY), sequence=len(self.sent)))
        else:
            self.datagrams = self.answers.pop(0)


def test_socket_may_be_used_for_the_next_dump_after_one_that_was_interrupted(sock: NftSocket) -> None:
    """So the mark is reported when the dump has ended, with nothing of it left to read."""
    done = struct.pack("=i", 0)
    wire = OneAtATime(
        [
            message(10, NAME, sequence=1, flags=0x10),
            message(10, NAME, sequence=1),
            message(DONE, done, sequence=1),
        ],
        [message(10, NAME, sequence=2) + message(DONE, done, sequence=2)],
    )
    with pytest.raises(DumpInterruptedError):
        names(sock, wire)
    assert wire.datagrams == []
    assert names(sock, wire) == ["abc"]


@pytest.mark.parametrize("kind", [ERROR, DONE])
def test_error_of_the_kernel_is_raised_with_its_number(sock: NftSocket, kind: int) -> None:
    wire = Wire(message(kind, struct.pack("=i", -errno.ENOENT), sequence=1))
    with pytest.raises(OSError, match="No such file") as caught:
        names(sock, wire)
    assert caught.value.errno == errno.ENOENT


def test_message_of_impossible_length_is_an_error_and_not_a_loop(sock: NftSocket) -> None:
    wire = Wire(struct.pack("=IHHII", 0, 10, 0, 1, 0) + bytes(8))
    with pytest.raises(OSError, match="Bad message") as caught:
        names(sock, wire)
    assert caught.value.errno == errno.EBADMSG


def test_attributes_are_padded_and_read_in_order() -> None:
    data = attribute_bytes(1, b"a") + attribute_bytes(0x8002, b"bcdef") + attribute_bytes(1, b"g")
    assert len(data) % 4 == 0
    assert [(number, bytes(value)) for number, value in each_attribute(memoryview(data))] == [
        (1, b"a"),
        (2, b"bcdef"),
        (1, b"g"),
    ]
    assert bytes(attributes(memoryview(data))[1]) == b"g"
    assert list(each_attribute(memoryview(b"\x02\x00\x01\x00"))) == []
    assert list(each_attribute(memoryview(b"\x04"))) == []


def test_missing_set_is_an_error_of_the_kernel(namespace: Namespace) -> None:
    namespace.nft("add table ip kube-proxy\n")
    with NftSocket(Family.IPV4) as found, pytest.raises(OSError, match="No such file") as caught:
        list(found.dump(netlink.GET_ELEMENT, {1: "kube-proxy", 2: "nope"}))
    assert caught.value.errno == errno.ENOENT


def test_socket_gives_up_when_the_kernel_does_not_answer(sock: NftSocket) -> None:
    """A dump has no end of its own, so the socket has a time limit."""
    with NftSocket(Family.IPV4) as fresh:
        limit = fresh._socket.gettimeout()
    assert limit is not None
    assert 0 < limit <= 30
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        near.settimeout(0.05)
        sock._socket = near
        with pytest.raises(TimeoutError):
            list(sock.dump(netlink.GET_TABLE, {}))
