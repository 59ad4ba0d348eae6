"""Requests that other sites make a browser send: they come from another origin, or have no token.

A token is a hash under the page's own random key, of what the browser's session is known by. Other sites can't read it.
Browsers say where a request that changes something comes from; a program, which says nothing, can't be misled.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from urllib.parse import SplitResult, parse_qsl, urlsplit

from starlette.datastructures import Headers

HEADER = "X-CSRF-Token"
FIELD = "csrf_token"
#: of a form
MAX_FIELDS = 5000
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Tokens:
    """Makes and checks tokens."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, subject: str) -> str:
        """The token of a session, of a proxy's user, or (empty) of all who need no login."""
        return hmac.new(self._key, subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def is_given(self, token: str, headers: Headers, body: bytes) -> bool:
        """Whether a request has it, as a header or as a field of its form.

        Raises:
            ValueError: the form has more than :data:`MAX_FIELDS` fields.
        """
        given = [headers.get(HEADER, "")]
        if headers.get("content-type", "").partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
            fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
            given += [value for name, value in fields if name == FIELD]
        return any(hmac.compare_digest(token.encode(), one.encode("utf-8", "replace")) for one in given)


def is_of_browser(headers: Headers) -> bool:
    """Whether the request has what every browser says when it sends something."""
    return any(name in headers for name in ("origin", "sec-fetch-site", "sec-fetch-mode"))


def is_foreign(headers: Headers, known: Iterable[str] = ()) -> bool:
    """Whether another site, or a page that hides where it is from, has sent this; ``known`` are names of this one."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return True
    if origin is None:
        return False
    there = parted(origin)
    hosts = [one.lower() for one in known]
    return (
        there is None or there.netloc.lower() != headers.get("host", "").lower() and (there.hostname or "") not in hosts
    )


def parted(address: str) -> SplitResult | None:
    """The parts of an address that a request gives; None if it is none, such as ``http://[``."""
    try:
        return urlsplit(address)
    except ValueError:
        return None


def is_known_host(host: str, known: Iterable[str]) -> bool:
    """Whether a Host header names loopback, or one of these: otherwise a foreign name leads to this page."""
    there = parted(f"//{host}") if host.isprintable() else None
    name = (there.hostname or "").rstrip(".") if there is not None else ""
    if name in {one.lower() for one in known} or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
