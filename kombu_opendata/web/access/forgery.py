"""Protection from cross-site request forgery: checks of the origin and of a token.

A token is a hash of the browser's session with a random key of this process, which other sites can't read. Browsers
send the origin of each request that changes something. Other programs send none, and no site can direct their requests.
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
#: limit of the fields of a form
MAX_FIELDS = 5000
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Tokens:
    """CSRF tokens."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, subject: str) -> str:
        """Return the token of a session, of a proxy's user, or (empty subject) of all users that need no login."""
        return hmac.new(self._key, subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def is_given(self, token: str, headers: Headers, body: bytes) -> bool:
        """Return True if a header or a field of the form has the token; raise ValueError for too many fields."""
        candidates = [headers.get(HEADER, "")]
        if headers.get("content-type", "").partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
            fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
            candidates += [value for name, value in fields if name == FIELD]
        return any(
            hmac.compare_digest(token.encode(), candidate.encode("utf-8", "replace")) for candidate in candidates
        )


def is_of_browser(headers: Headers) -> bool:
    """Return True if the request has a header that every browser sends with a form."""
    return any(name in headers for name in ("origin", "sec-fetch-site", "sec-fetch-mode"))


def is_foreign(headers: Headers, known: Iterable[str] = ()) -> bool:
    """Return True if another site, or a page with a hidden origin, sent the request; ``known``: names of this host."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return True
    if origin is None:
        return False
    source = parted(origin)
    hosts = [name.lower() for name in known]
    return (
        source is None
        or source.netloc.lower() != headers.get("host", "").lower()
        and (source.hostname or "") not in hosts
    )


def parted(address: str) -> SplitResult | None:
    """Return the parts of an address from a request; None if it is invalid, such as ``http://[``."""
    try:
        return urlsplit(address)
    except ValueError:
        return None


def is_known_host(host: str, known: Iterable[str]) -> bool:
    """Return True if a Host header names loopback or a known host; other names may be an attack (DNS rebinding)."""
    address = parted(f"//{host}") if host.isprintable() else None
    name = (address.hostname or "").rstrip(".") if address is not None else ""
    if name in {known_name.lower() for known_name in known} or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
