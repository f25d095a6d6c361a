"""Errors as the API words them: objects of kind Status."""

from dataclasses import dataclass
from typing import Any

import msgspec

_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired", 422: "Invalid",
            429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Status:
    """metav1.Status of a failure.

    Attributes:
        code: the HTTP status.
        message: what a person reads.
        reason: what a program reads; None: what goes with the code.
        retry_after: seconds until one should try again; None: it is not said.
        resume: a continue token in its metadata.
    """

    code: int
    message: str
    reason: str | None = None
    retry_after: int | None = None
    resume: str | None = None

    def body(self) -> dict[str, Any]:
        """As an object of the API."""
        details = {"details": {"retryAfterSeconds": self.retry_after}} if self.retry_after is not None else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.resume} if self.resume else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason or _REASONS.get(self.code, "Unknown"),
            **details,
            "code": self.code,
        }

    def encoded(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self.body())
