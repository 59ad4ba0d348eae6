"""Sessions of users who have logged in. Browsers hold random tokens that name them."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

#: limit of concurrent sessions; beyond it, the least recently used one ends
MOST = 1000


@dataclass
class LoginSession:
    """An active login.

    Attributes:
        broker: the key of the client that logged in; only that client has the secret.
    """

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
        if not self.goes_on(session):
            del self._known[key]
            return None
        self._known.move_to_end(key)
        session.used_at = self._time()
        return session

    def goes_on(self, session: LoginSession) -> bool:
        """Return True if a session is active. A session that has ended stays so."""
        now = self._time()
        is_old = now - session.began_at > self._seconds or now - session.used_at > self._idle_seconds
        session.is_over = session.is_over or is_old
        return not session.is_over

    def end(self, token: str) -> None:
        """End the session of a token, if there is one."""
        session = self._known.pop(_hash(token), None)
        if session is not None:
            session.is_over = True


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
