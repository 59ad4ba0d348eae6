"""Authentication of requests: by a trusted proxy, a session or HTTP Basic; none if the broker needs no login.

A session begins with a login. Browsers hold a random token that names it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from ...errors import AccessRefused, OpenDataError, TooManyLogins
from ...failure_rate_limit import FailureLimit
from ...url import parse
from ..settings import WebSettings
from ..user_clients import Brokers, UserBroker
from . import audit
from .forgery import Tokens

# The broker's own limits of failed logins don't apply, because all logins come from the web UI's address.
#: limits of failed logins in the last ``FAILURE_SECONDS``
FAILURES_PER_ADDRESS = 5
FAILURES_PER_USER = 20
FAILURE_SECONDS = 60.0
#: logins that the broker checks concurrently
_AT_ONCE = 4
#: duration for which the web UI remembers that the broker requires a login
_NEEDS_LOGIN_SECONDS = 30.0
_MAX_NAME, _MAX_SECRET = 255, 4096
#: limit of concurrent sessions; beyond it, the least recently used one ends
MOST = 1000


@dataclass
class LoginSession:
    """An active login. ``broker`` is the key of the client that logged in; only this client keeps the secret."""

    user: str
    broker: str
    began_at: float
    used_at: float
    is_over: bool = False


class Sessions:
    """All sessions, by a hash of their token."""

    def __init__(self, idle_seconds: float, seconds: float, time: Callable[[], float]) -> None:
        self._idle_seconds = idle_seconds
        self._seconds = seconds
        self._time = time
        self._known: OrderedDict[bytes, LoginSession] = OrderedDict()

    def begin(self, user: str, broker: str) -> str:
        """Begin a session and return its token, which is never reused."""
        token = secrets.token_urlsafe(32)
        now = self._time()
        self._known[_hash(token)] = LoginSession(user, broker, now, now)
        if len(self._known) > MOST:
            self._known.popitem(last=False)[1].is_over = True
        return token

    def find(self, token: str) -> LoginSession | None:
        """Return the session of a token; None if it has ended."""
        session = self._known.get(key := _hash(token))
        if session is None:
            return None
        if not self.is_active(session):
            del self._known[key]
            return None
        self._known.move_to_end(key)
        session.used_at = self._time()
        return session

    def is_active(self, session: LoginSession) -> bool:
        """Return True if a session is active; an ended session never becomes active again."""
        now = self._time()
        is_old = now - session.began_at > self._seconds or now - session.used_at > self._idle_seconds
        session.is_over = session.is_over or is_old
        return not session.is_over

    def end(self, token: str) -> None:
        session = self._known.pop(_hash(token), None)
        if session is not None:
            session.is_over = True


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class Visitor:
    """An authenticated user of the web UI.

    Attributes:
        user: the name of the broker's user; empty if no login is needed.
        token: the CSRF token.
        is_ambient: True if the browser authenticates automatically, so that a token is always needed.
        session: the session of a user who logged in by the form.
    """

    user: str
    broker: UserBroker
    token: str
    address: str
    is_ambient: bool = False
    session: LoginSession | None = None


class Visitors:
    """Authentication of all requests."""

    def __init__(self, settings: WebSettings, brokers: Brokers, time: Callable[[], float]) -> None:
        self._settings = settings
        self._brokers = brokers
        self._time = time
        self.tokens = Tokens()
        self.sessions = Sessions(settings.session_idle_seconds, settings.session_seconds, time)
        #: cookies ignore ports, so each web UI on a host has its own cookie name
        self.cookie = f"odq_{hashlib.sha256(settings.url.rpartition('@')[2].encode()).hexdigest()[:8]}"
        self._by_address = FailureLimit(FAILURES_PER_ADDRESS, FAILURE_SECONDS, time)
        self._by_user = FailureLimit(FAILURES_PER_USER, FAILURE_SECONDS, time)
        self._checking = asyncio.Semaphore(_AT_ONCE)
        self._needs_login_until = 0.0

    async def of(self, request: Request, *, is_api: bool) -> Visitor | None:
        """Return the user of a request; None if a login is needed.

        Raises OpenDataError if the user has no access, or the broker is unavailable.
        """
        if request.client is not None and self._is_proxy(request.client.host):
            return await self._proxied(request)
        address = self.address_of(request)
        token = request.cookies.get(self.cookie, "")
        session = self.sessions.find(token) if token else None
        if session is not None:
            broker = self._brokers.find(session.broker)
            if broker is not None:
                return Visitor(session.user, broker, self.tokens.of(token), address, True, session)
            self.sessions.end(token)
        authorization = request.headers.get("authorization", "")
        if is_api and authorization[:6].lower() == "basic ":
            user, secret = _basic(authorization[6:])
            return Visitor(user, await self.check(user, secret, address), self.tokens.of(f"basic {user}"), address)
        if self._settings.is_open and not self._settings.proxies and await self._is_free():
            return Visitor("", self._brokers.of(), self.tokens.of(""), address)
        return None

    async def log_in(self, request: Request, user: str, secret: str) -> str:
        """Log in by the form and return the token of a new session; raise as :meth:`check`."""
        address = self.address_of(request)
        broker = await self.check(user, secret, address)
        self.sessions.end(request.cookies.get(self.cookie, ""))
        audit.record(user, address, "logged in")
        return self.sessions.begin(user, broker.key)

    async def check(self, user: str, secret: str, address: str) -> UserBroker:
        """Return the broker, as the user with this secret sees it.

        Raises:
            AccessRefused: there is no such user, or the secret is wrong.
            TooManyLogins: there were too many failed logins.
            OpenDataError: the broker is unavailable.
        """
        async with self._checking:
            seconds = self._by_address.wait(address)
            if not seconds and self._by_address.has_failed(address):
                seconds = self._by_user.wait(user[:_MAX_NAME])
            if seconds:
                raise TooManyLogins(f"too many wrong logins: try again in {seconds:.0f} s", seconds=round(seconds, 1))
            try:
                if not 0 < len(user) <= _MAX_NAME or len(secret) > _MAX_SECRET or not _is_unicode(user + secret):
                    raise AccessRefused(f"user {user[:100]!r} is unknown or the secret is wrong")
                return await self._brokers.entered(user, secret)
            except AccessRefused as exc:
                self._by_address.failed(address)
                self._by_user.failed(user[:_MAX_NAME])
                audit.record(user, address, "was refused: %s", exc.text, is_bad=True)
                raise

    def log_out(self, request: Request) -> None:
        """End the session of a request."""
        token = request.cookies.get(self.cookie, "")
        session = self.sessions.find(token)
        if session is not None:
            self.sessions.end(token)
            audit.record(session.user, self.address_of(request), "logged out")

    # ------------------------------------------------------------------ proxies
    def _is_proxy(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self._settings.proxies)

    async def _proxied(self, request: Request) -> Visitor | None:
        names = request.headers.getlist(self._settings.user_header)
        if len(names) != 1 or not names[0].strip() or len(names[0]) > _MAX_NAME:
            return None
        user = names[0].strip()
        broker = await self._brokers.entered(act_as=user)
        return Visitor(user, broker, self.tokens.of(f"proxy {user}"), self.address_of(request), True)

    def address_of(self, request: Request) -> str:
        """Return the client's address; a trusted proxy reports it in X-Forwarded-For."""
        address = request.client.host if request.client else "local"
        if self._is_proxy(address):
            hops = [hop.strip() for hop in request.headers.get("x-forwarded-for", "").split(",")]
            for hop in reversed(hops):
                if not hop or len(hop) > 64:
                    break
                address = hop
                if not self._is_proxy(hop):
                    break
        return address

    # ------------------------------------------------------------------ no logins
    async def _is_free(self) -> bool:
        """Return True if no login is needed, because the broker has no users, or the web UI's URL names a user."""
        address = parse(self._settings.url)
        if address.kind in ("embedded", "memory") or address.user or self._settings.options.user:
            return True
        if self._time() < self._needs_login_until:
            return False
        try:
            await self._brokers.of().identity()
        except AccessRefused:
            self._needs_login_until = self._time() + _NEEDS_LOGIN_SECONDS
            return False
        except OpenDataError:
            return True  # the view reports that the broker is unavailable
        return True


def _is_unicode(text: str) -> bool:
    """Return False for surrogates; a form with an unusual charset may contain them."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _basic(text: str) -> tuple[str, str]:
    try:
        user, _, secret = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:  # neither Base64 nor UTF-8
        return "", ""
    return user, secret
