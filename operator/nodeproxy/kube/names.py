"""Which texts may stand for names. What passes here is safe to appear in a ruleset, a log line and a metric label.

The forms are those of the Kubernetes API conventions: RFC 1123 labels and subdomains, label values, RFC 3339 times.
"""

import datetime
import functools
import re

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?")
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?\.?")
_UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:]{0,127}")
_UTC_SECONDS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_TIME = re.compile(_UTC_SECONDS.pattern[:-1] + r"(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})")
_SUBDOMAIN_LENGTH = 253


@functools.lru_cache(maxsize=16_384)
def is_label(text: str) -> bool:
    """Whether it is an RFC 1123 label: at most 63 of ``a-z 0-9 -``, no dash at either end."""
    return _LABEL.fullmatch(text) is not None


@functools.lru_cache(maxsize=16_384)
def is_subdomain(text: str) -> bool:
    """Whether it is an RFC 1123 subdomain of at most 253 characters: labels joined by dots."""
    return len(text) <= _SUBDOMAIN_LENGTH and _SUBDOMAIN.fullmatch(text) is not None


@functools.lru_cache(maxsize=1024)
def is_label_value(text: str) -> bool:
    """Whether it can be the value of a Kubernetes label and is not empty (zones are such values)."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether it is made like the key of a label or taint, with or without a prefix."""
    return _LABEL_KEY.fullmatch(text) is not None


def is_host_name(text: str) -> bool:
    """Whether it is made like a host name; upper case is allowed."""
    return _HOST_NAME.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Whether it is made like an object's uid, which is opaque but never needs blanks or quotes."""
    return _UID.fullmatch(text) is not None


def canonical_time(text: str) -> str:
    """A time in UTC with whole seconds, as the API server writes it, so that times compare as text.

    Raises:
        ValueError: it is not an RFC 3339 time.
    """
    if _TIME.fullmatch(text) is None:
        msg = "is not an RFC 3339 time"
        raise ValueError(msg)
    try:
        when = datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        msg = "is not an RFC 3339 time"
        raise ValueError(msg) from None
    return when.strftime("%Y-%m-%dT%H:%M:%SZ").zfill(20)


def is_canonical_time(text: str) -> bool:
    """Whether it has the one form that :func:`canonical_time` returns."""
    return _UTC_SECONDS.fullmatch(text) is not None


def is_time(text: str) -> bool:
    """Whether it is made like an RFC 3339 time, of any precision."""
    return _TIME.fullmatch(text) is not None
