"""The addresses of this node's interfaces, and word of their changes."""

import asyncio
import threading
from collections.abc import Callable

import structlog
import tenacity
from pyroute2 import AsyncIPRoute, IPRoute
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR

from nodeproxy.kernel.errors import KernelError
from nodeproxy.kube.addresses import canonical_address

_RETRY_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class AddressesError(KernelError):
    """The interfaces' addresses could not be listed."""


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(NetlinkDumpInterrupted),
    stop=tenacity.stop_after_attempt(5),
    wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.2),
    reraise=True,
)
def _dump() -> tuple[str, ...]:
    with IPRoute() as route:
        # IFA_LOCAL is the own address of a point-to-point link, whose IFA_ADDRESS is the peer's.
        found = [message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS") for message in route.get_addr()]
    return tuple(sorted({canonical_address(address) for address in found if address}))


def list_addresses() -> tuple[str, ...]:
    """The canonical addresses of all interfaces, of both families, sorted.

    Raises:
        AddressesError: they could not be listed, also after some tries.
    """
    try:
        return _dump()
    except (NetlinkError, NetlinkDumpInterrupted, OSError) as error:
        msg = f"listing interface addresses: {error}"
        raise AddressesError(msg) from error


class AddressWatch:
    """Calls ``changed`` when an address comes or goes, from a thread of its own, in the namespace of its start."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="address-watch", daemon=True)

    def start(self, timeout: float = 5.0) -> bool:
        """Start, and wait until no change can be missed any more, ``timeout`` seconds at most; whether it is so."""
        self._thread.start()
        return self._listening.wait(timeout)

    def stop(self) -> None:
        """Stop, and wait for the thread."""
        loop, main = self._loop, self._main
        if loop is not None and main is not None and not loop.is_closed():
            loop.call_soon_threadsafe(main.cancel)
        self._thread.join(2.0)

    def _run(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        lost = False
        try:
            while True:
                try:
                    await self._listen(after_loss=lost)
                except Exception as error:  # whatever it is, it must not end the watch
                    if not isinstance(error, NetlinkError | OSError):
                        _log.exception("following interface addresses failed")
                    lost = True
                    self._changed()
                    await asyncio.sleep(_RETRY_SECONDS)
        except asyncio.CancelledError:
            return

    async def _listen(self, *, after_loss: bool) -> None:
        async with AsyncIPRoute() as route:
            await route.bind(groups=RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR)
            self._listening.set()
            if after_loss:
                # A lost or overrun socket has swallowed changes, also while nobody listened: look at all addresses.
                self._changed()
            while True:
                async for message in route.get():
                    if message["event"] in {"RTM_NEWADDR", "RTM_DELADDR"}:
                        self._changed()
