"""Clients of the broker, one for each user, and a cache of their recent results.

**Why not a request for each view.** Every open view of the web UI refreshes every few seconds, so some browser tabs
would keep the broker busy with the same lists. :meth:`UserBroker.recent` shares results between the views of one user;
other users have other permissions, so they share nothing.

=============  ================================================  =======================================================
a result is    a caller                                          becomes
=============  ================================================  =======================================================
missing        begins the request and awaits it                  requested
requested      awaits the same request; after its ``patience``,  fresh; or missing after an error, which is raised to
               gets the previous result, if any                  all callers that await it
fresh          gets it immediately                               old, after the caller's ``seconds`` or, if longer, 200
                                                                 times the duration of the request (at most a minute)
old            begins a request, as if it were missing           requested
=============  ================================================  =======================================================

A caller that is cancelled or runs out of patience does not end the request, as others may await it. An action clears
the cache: requests that began before continue for their callers, and later callers begin others, so that they see the
effect. Results that no request renewed for two minutes are dropped with the next request. Times are monotonic.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar, cast

from ..errors import AccessRefused, OpenDataError
from ..protocol.messages import Identity
from ..queue_client import AsyncQueueClient
from ..queue_client.metrics import AllMetrics
from ..url import parse
from .broker_client import PageClient
from .settings import WebSettings
from .verification import Verification

T = TypeVar("T")
#: maximum age of a result about permissions; the broker checks each call anyway
_IDENTITY_SECONDS = 30.0
#: a result is requested again after this multiple of the request's duration, at most after this number of seconds
_PAUSE, _LONGEST_PAUSE = 200, 60.0
#: results that are not requested for this time are dropped
_KEPT_SECONDS = 120.0


#: ages beyond the limit, in seconds, of the results that a task has used
_ages: ContextVar[list[float] | None] = ContextVar("ages", default=None)


def note_ages() -> list[float]:
    """Return a list that collects the ages of the results that this task, and tasks that it starts, use from now on."""
    ages = [0.0]
    _ages.set(ages)
    return ages


class _Answer:
    """A cached result with the time of its request; until the result arrives, ``before`` is the previous one.

    Attributes:
        took: the shorter of the durations of this request and the previous one, in seconds. A single request may have
            waited for a new connection after a restart of the broker; that must not delay the next one.
    """

    def __init__(self, at: float, future: asyncio.Future[Any], earlier: _Answer | None) -> None:
        self.at = at
        self.future = future
        self.took = 0.0
        self.before = None if earlier is None else earlier.future
        self._seconds = 0.0
        self._earlier_seconds = 0.0 if earlier is None else earlier._seconds

    def is_older(self, seconds: float, now: float) -> bool:
        """Return True if the result has arrived and is older than ``seconds``."""
        return self.future.done() and now - self.at > seconds

    def ended(self, future: asyncio.Future[Any], now: float) -> None:
        """Record the duration of the request. Its error is raised to callers that await the result."""
        self._seconds = now - self.at
        self.before = None
        self.took = min(self._seconds, self._earlier_seconds)
        if not future.cancelled():
            future.exception()


class UserBroker:
    """The broker as one user sees it: a client, and results that all open views of this user share.

    Attributes:
        expects_standby: whether a standby should exist: one was connected, or the URL names more than one broker.
        lease_counts: the number of expired leases of each queue, by the time at which the counters were read.
        metrics: the latest metrics of all queues.
        key: the key of this client among those of the web UI.
        who: the latest result of :meth:`identity`.
        was_entered: whether the broker has accepted this user.
        verified: the last verification of each instance's store.
    """

    def __init__(
        self,
        client: AsyncQueueClient,
        *,
        expects_standby: bool = False,
        key: str = "",
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.client = client
        self.key = key
        self._now = now
        self.was_entered = False
        self.who: Identity | None = None
        self.used_at = now()
        self.expects_standby = expects_standby
        self.lease_counts: deque[tuple[float, dict[str, int]]] = deque()
        self.metrics: AllMetrics | None = None
        self.verified: dict[str, Verification] = {}
        self._answers: dict[Hashable, _Answer] = {}

    @property
    def last_used_at(self) -> float:
        """The time of the last request of this user, or the last call of the user's open views and jobs."""
        return max(self.used_at, self.client.used_at if isinstance(self.client, PageClient) else 0.0)

    async def identity(self) -> Identity:
        """Return the user with its permissions."""
        self.who = await self.recent("identity", _IDENTITY_SECONDS, self.client.whoami)
        return self.who

    async def recent(
        self, key: Hashable, seconds: float, load: Callable[[], Awaitable[T]], *, patience: float | None = None
    ) -> T:
        """Return a result that is at most ``seconds`` old. Concurrent callers share one request.

        Results that take the broker long are requested less often, so that open views don't keep it busy.

        Raises:
            TimeoutError: neither this result nor an earlier one is available after ``patience`` seconds. The request
                continues.
        """
        now = self._now()
        answer = self._answers.get(key)
        if answer is None or answer.is_older(max(seconds, min(_PAUSE * answer.took, _LONGEST_PAUSE)), now):
            self._answers = {name: cached for name, cached in self._answers.items() if now - cached.at < _KEPT_SECONDS}
            started = self._answers[key] = answer = _Answer(now, asyncio.ensure_future(load()), answer)
            answer.future.add_done_callback(lambda future: started.ended(future, self._now()))
        if (ages := _ages.get()) is not None:
            ages.append(now - answer.at - seconds)
        try:
            return cast(T, await asyncio.wait_for(asyncio.shield(answer.future), patience))
        except Exception:
            if answer.future.done():
                self._answers.pop(key, None)
            elif answer.before is not None:
                return cast(T, answer.before.result())
            raise

    def forget_answers(self) -> None:
        """Clear the cache after an action."""
        self._answers.clear()

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


#: limit of the clients beside the web UI's own
_MOST = 64


class Brokers:
    """The broker as each user sees it. Clients that were not used for long are closed."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[str, UserBroker] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, user: str = "", secret: str = "", act_as: str = "") -> UserBroker:
        """Return the broker as seen by a user, by default the web UI's own. The client connects with its first call."""
        key = self._key_of(user, secret, act_as)
        if key not in self._known:
            address = parse(self._settings.url)
            options = replace(self._settings.options, act_as=act_as)
            if user:
                address = replace(address, user=user, secret=secret)
            client = PageClient(address.as_uri(include_secret=True), options)
            self._known[key] = UserBroker(client, expects_standby=bool(address.others), key=key)
        broker = self._known[key]
        self._known.move_to_end(key)
        broker.used_at = monotonic()
        self._close_unused()
        return broker

    async def entered(self, user: str = "", secret: str = "", act_as: str = "") -> UserBroker:
        """Return the same as :meth:`of`, after the broker has accepted this user.

        Raises:
            AccessRefused: the broker rejects the login, or has no users and so checks no secrets.
            OpenDataError: the broker is unavailable, or can't check logins now.
        """
        broker = self.of(user, secret, act_as)
        try:
            identity = await broker.identity()
            if user and identity.user != user:
                raise AccessRefused(
                    "this broker has no users, so no login is possible: start it with --users, or serve the web UI on "
                    "loopback only"
                )
            if act_as and identity.user not in (act_as, ""):
                raise AccessRefused(f"the broker does not let the web UI act as {act_as!r}")
        except OpenDataError:
            if not broker.was_entered:
                self.forget(broker)
            raise
        broker.was_entered = True
        return broker

    def find(self, key: str) -> UserBroker | None:
        """Return the broker of an earlier login; None if its client was closed."""
        broker = self._known.get(key)
        if broker is not None:
            self._known.move_to_end(key)
            broker.used_at = monotonic()
        return broker

    def forget(self, broker: UserBroker) -> None:
        """Close a client."""
        if self._known.pop(broker.key, None) is not None:
            task = asyncio.get_running_loop().create_task(broker.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        while self._known:
            await self._known.popitem()[1].close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_unused(self) -> None:
        """Close unused clients, except the web UI's own and the newest."""
        own, now = self._key_of("", "", ""), monotonic()
        others = [broker for broker in self._known.values() if broker.key != own]
        for place, broker in enumerate(others[:-1]):
            if len(others) - place > _MOST or now - broker.last_used_at > self._settings.session_idle_seconds + 60:
                self.forget(broker)

    def _key_of(self, *credentials: str) -> str:
        digest = hashlib.blake2b(key=self._key)
        for text in credentials:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()
