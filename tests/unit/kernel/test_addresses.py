"""Addresses of interfaces, in a namespace where they come and go."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError

from netns.namespaces import Namespace
from nodeproxy.kernel import addresses
from nodeproxy.kernel.addresses import AddressesError, AddressWatch, list_addresses


def test_addresses_of_all_interfaces_are_listed_once_and_sorted(namespace: Namespace) -> None:
    namespace.ip(
        [
            "link add one type veth peer name two",
            "addr add 192.0.2.7/24 dev one",
            "addr add 192.0.2.7/32 dev two",
            "addr add 192.0.2.10/24 dev two",
            "addr add 2001:db8:0::1/64 dev two nodad",
        ]
    )
    found = list_addresses()
    assert found == ("127.0.0.1", "192.0.2.10", "192.0.2.7", "2001:db8::1", "::1")
    namespace.ip(["link del two"])
    assert list_addresses() == ("127.0.0.1", "::1")


def test_own_address_of_a_point_to_point_link_is_listed_and_not_the_peers(namespace: Namespace) -> None:
    namespace.ip(["link add ptp type veth peer name far", "addr add 198.51.100.1 peer 198.51.100.2/32 dev ptp"])
    found = list_addresses()
    assert "198.51.100.1" in found
    assert "198.51.100.2" not in found


class _Interrupted:
    """An ``IPRoute`` whose first dumps are interrupted by a change."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.error, self.calls = times, error, 0

    def __call__(self) -> "_Interrupted":
        return self

    def __enter__(self) -> "_Interrupted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_addr(self) -> Iterator["_Interrupted"]:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return iter([self])

    def get_attr(self, name: str) -> str | None:
        return "192.0.2.1" if name == "IFA_ADDRESS" else None


@pytest.mark.usefixtures("namespace")
def test_interrupted_dump_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = _Interrupted(2, NetlinkDumpInterrupted())
    monkeypatch.setattr(addresses, "IPRoute", stub)
    assert list_addresses() == ("192.0.2.1",)
    assert stub.calls == 3


@pytest.mark.usefixtures("namespace")
def test_dump_that_is_always_interrupted_is_an_error_and_no_partial_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = _Interrupted(1000, NetlinkDumpInterrupted())
    monkeypatch.setattr(addresses, "IPRoute", stub)
    with pytest.raises(AddressesError, match="listing interface addresses"):
        list_addresses()
    assert 1 < stub.calls < 20


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("error", [NetlinkError(105, "No buffer space"), OSError(24, "Too many open files")])
def test_other_failures_are_errors_that_say_why(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(addresses, "IPRoute", _Interrupted(1000, error))
    with pytest.raises(AddressesError, match=r"No buffer space|Too many open files"):
        list_addresses()


class Watching:
    """A watch that counts, to be stopped in any case."""

    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()
        self.watch = AddressWatch(self._changed)

    def _changed(self) -> None:
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def wait_above(self, count: int, seconds: float = 1.0) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self.count > count, seconds), f"no notice within {seconds} s"


@pytest.fixture
def watching(namespace: Namespace) -> Iterator[Watching]:
    namespace.ip(["link add one type veth peer name far", "link set one up", "link set far up"])
    found = Watching()
    assert found.watch.start()
    try:
        yield found
    finally:
        found.watch.stop()


@pytest.mark.parametrize("address", ["192.0.2.7/24", "2001:db8::1/64"])
def test_watch_notices_within_a_second_that_an_address_comes_and_goes(
    watching: Watching, namespace: Namespace, address: str
) -> None:
    for words in ("add", "del"):
        before = watching.count
        namespace.ip([f"addr {words} {address} dev one"])
        watching.wait_above(before)


def test_watch_says_nothing_while_no_address_changes(watching: Watching, namespace: Namespace) -> None:
    namespace.ip(["link add two type veth peer name three"])
    time.sleep(0.2)
    before = watching.count
    time.sleep(0.2)
    assert watching.count == before


def test_stopped_watch_is_silent_and_its_thread_is_gone(watching: Watching, namespace: Namespace) -> None:
    started = time.monotonic()
    watching.watch.stop()
    assert time.monotonic() - started < 1
    assert not watching.watch._thread.is_alive()
    before = watching.count
    namespace.ip(["addr add 192.0.2.9/24 dev one"])
    time.sleep(0.1)
    assert watching.count == before


def test_watch_that_lost_its_socket_has_all_looked_at_once_it_listens_again(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changed between the loss and the new start was not seen, so the notice comes after listening has begun."""
    monkeypatch.setattr(addresses, "_RETRY_SECONDS", 0.05)
    real = addresses.AsyncIPRoute
    opened: list[int] = []
    listening_when_told: list[bool] = []

    class Failing(real):  # type: ignore[misc, valid-type]
        async def bind(self, *args: object, **kwargs: object) -> object:
            opened.append(1)
            if len(opened) == 1:
                raise OSError(105, "No buffer space available")
            return await super().bind(*args, **kwargs)

    monkeypatch.setattr(addresses, "AsyncIPRoute", Failing)
    found = AddressWatch(lambda: listening_when_told.append(len(opened) > 1))
    found.start()
    try:
        deadline = time.monotonic() + 2
        while True not in listening_when_told and time.monotonic() < deadline:
            time.sleep(0.01)
        assert True in listening_when_told
    finally:
        found.stop()
    assert not found._thread.is_alive()


def test_watch_goes_on_after_an_error_of_any_kind_and_has_all_looked_at(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a bug in a library: without the watch, no change of addresses would show again. It is logged."""
    monkeypatch.setattr(addresses, "_RETRY_SECONDS", 0.05)
    logged: list[str] = []
    monkeypatch.setattr(addresses, "_log", SimpleNamespace(exception=logged.append))
    failures: list[Exception] = [KeyError("event"), RuntimeError("no buffer")]

    class Failing(addresses.AsyncIPRoute):  # type: ignore[misc]
        async def bind(self, *args: object, **kwargs: object) -> object:
            if failures:
                raise failures.pop()
            return await super().bind(*args, **kwargs)

    monkeypatch.setattr(addresses, "AsyncIPRoute", Failing)
    namespace.ip(["link add one type veth peer name far"])
    watching = Watching()
    assert watching.watch.start()
    try:
        watching.wait_above(2)  # once for each failure, and once when it listens again
        assert logged == ["following interface addresses failed"] * 2
        before = watching.count
        namespace.ip(["addr add 192.0.2.9/24 dev one"])
        watching.wait_above(before)
    finally:
        watching.watch.stop()
    assert not watching.watch._thread.is_alive()


@pytest.mark.parametrize("error", [NetlinkError(105, "No buffer space"), OSError(24, "Too many open files")])
def test_errors_of_the_kernel_are_tried_again_without_a_traceback(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(addresses, "_RETRY_SECONDS", 0.02)
    logged: list[str] = []
    monkeypatch.setattr(addresses, "_log", SimpleNamespace(exception=logged.append))

    class Failing(addresses.AsyncIPRoute):  # type: ignore[misc]
        async def bind(self, *_: object, **__: object) -> object:
            raise error

    monkeypatch.setattr(addresses, "AsyncIPRoute", Failing)
    watching = Watching()
    assert watching.watch.start(0.1) is False, "it does not listen"
    try:
        watching.wait_above(watching.count)
    finally:
        watching.watch.stop()
    assert logged == []
