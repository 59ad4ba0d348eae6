"""The clients of the broker, and what they were told a moment ago."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, TypeVar, cast

from ..errors import AccessRefused, OpenDataError
from ..protocol.messages import Identity
from ..queue_client import AsyncQueueClient
from ..queue_client.queue_models import AllMetrics
from ..url import parse
from .broker_client import PageClient
from .settings import WebSettings
from .verification import Verification

T = TypeVar("T")
#: how old an answer about rights may be; the broker checks each call anyway
_IDENTITY_SECONDS = 30.0
#: an answer is asked for again after so many times as long as it took, but at the latest after so many seconds
_PAUSE, _LONGEST_PAUSE = 200, 60.0
#: answers that nobody asks for any more are dropped
_KEPT_SECONDS = 120.0


#: of the answers that a task has used: how many seconds they are older than they should be
_ages: ContextVar[list[float] | None] = ContextVar("ages", default=None)


def note_ages() -> list[float]:
    """Return a list to which the ages of all answers are added that this task, and those that it starts, will use."""
    ages = [0.0]
    _ages.set(ages)
    return ages


class _Answer:
    """An answer, with the time of its request; until it is there, ``before`` is the one before.

    Attributes:
        took: how many seconds this answer and the one before took at least. A single one may have waited for a new
            connection, after a restart of the broker: the next one must not wait for long because of that.
    """

    def __init__(self, at: float, future: asyncio.Future[Any], earlier: _Answer | None) -> None:
        self.at, self.future, self.took = at, future, 0.0
        self.before = None if earlier is None else earlier.future
        self._seconds, self._earlier_seconds = 0.0, 0.0 if earlier is None else earlier._seconds

    def is_older(self, seconds: float, now: float) -> bool:
        """An answer that is not there yet is never old."""
        return self.future.done() and now - self.at > seconds

    def ended(self, future: asyncio.Future[Any]) -> None:
        """An error is told to whoever waits; it is no mistake if nobody does any more."""
        self._seconds, self.before = monotonic() - self.at, None
        self.took = min(self._seconds, self._earlier_seconds)
        if not future.cancelled():
            future.exception()


class UserBroker:
    """The broker as one user sees it: a client, and answers that all open pages of this user share.

    Attributes:
        expects_standby: whether it should have a standby: there was one, or the URL names more than one broker.
        lease_counts: when counters were noted, and how many leases had expired in each queue.
        metrics: the figures of all queues, as the broker told them last.
        key: names it among the page's clients.
        who: what :meth:`identity` told last.
        was_entered: whether the broker has let this user in.
        verified: the last verification of each instance's store.
    """

    def __init__(self, client: AsyncQueueClient, *, expects_standby: bool = False, key: str = "") -> None:
        self.client = client
        self.key = key
        self.was_entered = False
        self.who: Identity | None = None
        self.used_at = monotonic()
        self.expects_standby = expects_standby
        self.lease_counts: deque[tuple[float, dict[str, int]]] = deque()
        self.metrics: AllMetrics | None = None
        self.verified: dict[str, Verification] = {}
        self._answers: dict[Hashable, _Answer] = {}

    @property
    def last_used_at(self) -> float:
        """When somebody came, or a page or job of theirs asked for something."""
        return max(self.used_at, self.client.used_at if isinstance(self.client, PageClient) else 0.0)

    async def identity(self) -> Identity:
        """Who this is, and what this user may do."""
        self.who = await self.recent("identity", _IDENTITY_SECONDS, self.client.whoami)
        return self.who

    async def recent(
        self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[T]], *, patience: float | None = None
    ) -> T:
        """An answer that is at most so old. Who asks while another asks the same gets the same answer.

        What takes the broker long is asked for less often, so that open pages don't keep it busy.

        Raises:
            TimeoutError: there is no answer after ``patience`` seconds, nor an earlier one; it will be there later.
        """
        now = monotonic()
        answer = self._answers.get(key)
        if answer is None or answer.is_older(max(seconds, min(_PAUSE * answer.took, _LONGEST_PAUSE)), now):
            self._answers = {name: one for name, one in self._answers.items() if now - one.at < _KEPT_SECONDS}
            answer = self._answers[key] = _Answer(now, asyncio.ensure_future(ask()), answer)
            answer.future.add_done_callback(answer.ended)
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
        """Ask for everything again, as something was done."""
        self._answers.clear()

    async def close(self) -> None:
        """End the connections."""
        await self.client.close()


@dataclass(frozen=True)
class Login:
    """As whom a client logs in; without a user, as the page itself."""

    user: str = ""
    secret: str = field(default="", repr=False)
    act_as: str = ""


#: the page itself
OWN = Login()
#: clients that are kept, beside the page's own
_MOST = 64


class Brokers:
    """The broker as each user sees it. The clients that were not used for long are closed."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[str, UserBroker] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, login: Login = OWN) -> UserBroker:
        """The broker as this user sees it. It is connected when it is first asked."""
        key = self._key_of(login)
        if key not in self._known:
            address = parse(self._settings.url)
            options = replace(self._settings.options, act_as=login.act_as)
            if login.user:
                address = replace(address, user=login.user, secret=login.secret)
            client = PageClient(address.as_uri(include_secret=True), options)
            self._known[key] = UserBroker(client, expects_standby=bool(address.others), key=key)
        found = self._known[key]
        self._known.move_to_end(key)
        found.used_at = monotonic()
        self._close_unused()
        return found

    async def entered(self, login: Login) -> UserBroker:
        """As :meth:`of`, when the broker has let this user in.

        Raises:
            AccessRefused: it does not, or it has no users, so that it asks nobody for a secret.
            OpenDataError: it is away, or can't check logins now.
        """
        broker = self.of(login)
        try:
            who = await broker.identity()
            if login.user and who.user != login.user:
                raise AccessRefused(
                    "this broker has no users, so nobody can log in: start it with --users, or serve the page on "
                    "loopback only"
                )
            if login.act_as and who.user not in (login.act_as, ""):
                raise AccessRefused(f"the broker does not let this page act as {login.act_as!r}")
        except OpenDataError:
            if not broker.was_entered:
                self.forget(broker)
            raise
        broker.was_entered = True
        return broker

    def find(self, key: str) -> UserBroker | None:
        """The broker of an earlier login, if its client is still there."""
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            found.used_at = monotonic()
        return found

    def forget(self, broker: UserBroker) -> None:
        """Close a client."""
        if self._known.pop(broker.key, None) is not None:
            task = asyncio.get_running_loop().create_task(broker.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all connections."""
        while self._known:
            await self._known.popitem()[1].close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_unused(self) -> None:
        """The page's own client stays, and so does the newest."""
        own, now = self._key_of(OWN), monotonic()
        others = [one for one in self._known.values() if one.key != own]
        for place, one in enumerate(others[:-1]):
            if len(others) - place > _MOST or now - one.last_used_at > self._settings.session_idle_seconds + 60:
                self.forget(one)

    def _key_of(self, login: Login) -> str:
        digest = hashlib.blake2b(key=self._key)
        for text in (login.user, login.secret, login.act_as):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()
