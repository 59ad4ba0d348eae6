"""Masking of confidential values: arguments and headers with names such as ``password``, and secrets in URLs.

A value is masked if its key, at any depth, contains one of the names. Within texts such as ``argsrepr`` and tracebacks,
a value is masked in the forms ``name=value`` and ``'name': value``. Positional arguments have no names, so they are
shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "••••••"
#: parts of names, in any case
NAMES = (
    "password", "passwd", "passphrase", "secret", "token", "api_key", "apikey", "authorization", "credential",
    "private_key", "cookie",
)  # fmt: skip
#: values that are nested deeper are not shown at all
MAX_DEPTH = 50
#: after a name: the rest of the word, a sign, and a value
_AFTER = re.compile(
    r"""([\w.-]{0,64}\\{0,3}["']?\s{0,8}(?:=>|[:=])\s{0,8})
    (?:(?i:basic|bearer|digest|negotiate|token)\s{1,8}[^\s,;)}\]'"]+  # of a header, with its scheme
    |[bru]{0,2}'(?:[^'\\\n]|\\.)*'?|[bru]{0,2}"(?:[^"\\\n]|\\.)*"?  # quoted
    |\\{1,3}'[^'\n]*'?|\\{1,3}"[^"\n]*"?  # quoted in a text that is quoted itself
    |[^\s,;)}\]]+)""",
    re.VERBOSE,
)


class Masking:
    """Masking of the values of these names."""

    def __init__(self, names: Iterable[str] = NAMES) -> None:
        self._name = re.compile("|".join(map(re.escape, names)) or r"(?!)", re.IGNORECASE)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return a value in which the values of masked names are replaced, at any depth and within texts."""
        if depth > MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            return {
                name: MASK if self._name.search(str(name)) else self.value(item, depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth + 1) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Return a text in which the values of masked names are replaced; the time is linear in its length."""
        parts, end = [], 0
        for name in self._name.finditer(text):
            match = _AFTER.match(text, name.end()) if name.start() >= end else None
            if match is not None:
                parts += [text[end : name.end()], match[1], MASK]
                end = match.end()
        return "".join((*parts, text[end:]))


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

    Invalid URLs are masked as well, because a secret may have any characters: the mask replaces everything from the
    first ``:`` after the scheme to the last ``@``. Without an ``@``, it replaces the text after the ``:`` of a host
    unless this text is a port.
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
    return place + mark + _QUERY_VALUE.sub(lambda match: match[1] + mask, query)


def _is_cut(url: str) -> bool:
    """Return True if this may be the beginning of a URL with a secret: a ``:`` without a port, and no ``@``."""
    match = SCHEME.match(url)
    if match is None or "@" in url:
        return False
    authority, _ = split_authority(url[match.end() :])
    return ":" in authority and not all(map(HOST.fullmatch, authority.split(",")))
