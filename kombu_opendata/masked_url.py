"""Broker URLs without their secrets, for logs and errors."""

from __future__ import annotations

import re

#: a host, or the percent-encoded path of a socket, and a port
HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]@\s]+)(?::([0-9]{0,5}))?")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LIST = re.compile(r";(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_QUERY_VALUE = re.compile(r"([^&=]+=)[^&]+")


def split_authority(rest: str) -> tuple[str, str]:
    """Return the text before the first ``/``, ``?`` or ``#``, and the rest."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return authority, rest[len(authority) :]


def masked(url: str, mask: str = "**") -> str:
    """Return a URL, or a list of URLs separated by ``;``, with each secret and each value of a query masked.

    Invalid URLs are masked as well, with any characters in the secret: everything from the first ``:`` after the scheme
    to the last ``@``, and text in the place of a port that is not a port.
    """
    parts = _LIST.split(url)
    if any(_is_cut(part) for part in parts):  # probably a ';' inside a secret
        parts = [url]
    return ";".join(_mask_query(_mask_one(part, mask), mask) for part in parts)


def _mask_one(url: str, mask: str) -> str:
    match = SCHEME.match(url)
    scheme = match[0] if match else ""
    login, at, place = url[len(scheme) :].rpartition("@")
    if not at:
        return f"{scheme}{place.partition(':')[0]}:{mask}" if _is_cut(url) else url
    if not scheme:
        return f"{mask}@{place}"
    user, colon, _secret = login.partition(":")
    return f"{scheme}{user}{colon}{mask if colon else ''}@{place}"


def _mask_query(url: str, mask: str) -> str:
    place, mark, query = url.partition("?")
    return place + mark + _QUERY_VALUE.sub(lambda found: found[1] + mask, query)


def _is_cut(url: str) -> bool:
    """Return True if this may be the beginning of a URL with a secret: a ``:`` without a port, and no ``@``."""
    match = SCHEME.match(url)
    if match is None or "@" in url:
        return False
    authority, _ = split_authority(url[match.end() :])
    return ":" in authority and not all(map(HOST.fullmatch, authority.split(",")))
