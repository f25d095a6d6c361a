"""Requests to the API server, with answers left raw: bytes, as they come.

Addresses, TLS, proxies, credentials and the pool of connections are the ``kubernetes`` client's. Decoding is done
elsewhere, and so is trying again.
"""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec
import urllib3
from kubernetes.client.exceptions import ApiException

from nodeproxy.kube.access import Access

_MOST_OF_AN_ERROR = 64 * 1024  # bytes of an error's body that are read
_LONGEST_MESSAGE = 300
_CHUNK = 256 * 1024

# What goes wrong on the way, in the words of the libraries below.
_TROUBLE = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


class RequestError(Exception):
    """A request without the answer that was asked for; it may be tried again."""


class UnreachableError(RequestError):
    """No answer, or one that broke off: refused, reset, timed out, not trusted, cut short."""


class SilenceError(UnreachableError):
    """Nothing came for too long."""


class StatusError(RequestError):
    """An answer that is an error.

    Attributes:
        status: the HTTP status code.
        reason: Kubernetes' word for it, such as ``Expired``; empty if it gave none.
        message: what the API server says.
        retry_after: seconds to wait, if it says so.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def expired(self) -> bool:
        """Whether a version that was asked for is too old: list anew."""
        return self.status == http.client.GONE


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """metav1.Status: how Kubernetes tells errors, as an answer or as an event."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None

    def error(self, status: int = 500, retry_after: float | None = None) -> StatusError:
        """The error that this is; ``status`` and ``retry_after`` hold if it does not say."""
        if self.details and self.details.retry_after_seconds and retry_after is None:
            retry_after = self.details.retry_after_seconds
        message = " ".join((self.message or "no message").split())[:_LONGEST_MESSAGE]
        return StatusError(self.code or status, self.reason or "", message, retry_after)


def read_status(raw: bytes | msgspec.Raw) -> Status:
    """The metav1.Status that an error's body, or an event's object, is; one with the text as message if it is none."""
    try:
        return msgspec.json.decode(raw, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Status(message=bytes(raw).decode(errors="replace"))


class Answer:
    """A successful answer whose body is still to be read. :meth:`abort` may be called from any thread."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._whole = False

    def allow_silence(self, seconds: float) -> None:
        """From now on, wait this long for the next bytes."""
        connection = self._response.connection
        sock = getattr(connection, "sock", None)
        if sock is not None:
            sock.settimeout(seconds)

    def chunks(self) -> Iterator[bytes]:
        """Pieces of it, decompressed, as they come; ends where the server ends it.

        Raises:
            UnreachableError: it broke off, or nothing came for as long as the request said.
        """
        while True:
            with _told():
                chunk = self._response.read1(_CHUNK, decode_content=True)
            if not chunk:
                self._whole = True
                return
            yield chunk

    def abort(self) -> None:
        """Have whoever reads come back at once."""
        with suppress(ValueError, RuntimeError, OSError):  # it may be over already
            self._response.shutdown()

    def close(self) -> None:
        """Give the connection back if the body was read as a whole, else end it."""
        if not self._whole:
            self._response.close()
        self._response.release_conn()


class Transport:
    """Sends requests.

    Args:
        access: where to.
        connect_timeout: seconds to wait for a connection.
    """

    def __init__(self, access: Access, connect_timeout: float) -> None:
        self._access = access
        self._connect_timeout = connect_timeout

    @contextmanager
    def get(
        self, path: str, query: Mapping[str, str], read_timeout: float, *, compressed: bool = False
    ) -> Iterator[Answer]:
        """A GET request.

        Args:
            path: as ``/api/v1/services``.
            query: its parameters.
            read_timeout: seconds to wait for the next bytes of the answer.
            compressed: whether the answer may be compressed.

        Raises:
            UnreachableError: no answer.
            StatusError: an answer that is an error. A 401 is one only after credentials have been read again.
        """
        response = self._send(path, query, read_timeout, compressed=compressed)
        if response.status == http.client.UNAUTHORIZED:
            _error(response)
            self._access.renew()
            response = self._send(path, query, read_timeout, compressed=compressed)
        if response.status != http.client.OK:
            raise _error(response)
        answer = Answer(response)
        try:
            yield answer
        finally:
            answer.close()

    def _send(
        self, path: str, query: Mapping[str, str], read_timeout: float, *, compressed: bool
    ) -> urllib3.BaseHTTPResponse:
        client = self._access.client()
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip" if compressed else "identity"}
        with _told():
            request = client.param_serialize(
                "GET", path, query_params=list(query.items()), header_params=headers, auth_settings=["BearerToken"]
            )
            answer = client.call_api(*request, _request_timeout=(self._connect_timeout, read_timeout))
        response: urllib3.BaseHTTPResponse = answer.response
        return response


@contextmanager
def _told() -> Iterator[None]:
    """Turns what the libraries raise into one kind of error, in few words."""
    try:
        yield
    except ApiException as error:
        raise UnreachableError(_words(error.reason)) from error
    except (urllib3.exceptions.ReadTimeoutError, TimeoutError) as error:
        raise SilenceError("the API server fell silent") from error
    except _TROUBLE as error:
        raise UnreachableError(_words(error)) from error


def _words(error: object) -> str:
    text = " ".join(str(error).split())
    # "<object at 0x…>: Failed to establish a new connection: [Errno 111] Connection refused" begins with noise.
    if ">: " in text:
        text = text.rpartition(">: ")[2].rstrip(")'\"")
    return text[:_LONGEST_MESSAGE] or type(error).__name__


def _error(response: urllib3.BaseHTTPResponse) -> StatusError:
    """The error that an answer tells; the connection is given back."""
    try:
        body = bytes(response.read(_MOST_OF_AN_ERROR, decode_content=True))
    except _TROUBLE:
        body = b""
    response.close()
    response.release_conn()
    status = read_status(body or (response.reason or "").encode())
    error = status.error(response.status, _seconds(response.headers.get("Retry-After")))
    error.status = response.status
    return error


def _seconds(header: str | None) -> float | None:
    """Seconds of a Retry-After header. Kubernetes sends a number; a date is not read."""
    return float(header) if header and header.strip().isdecimal() else None
