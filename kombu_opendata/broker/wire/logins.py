"""Login checks, in a few threads, with a limit on the number of wrong secrets.

Argon2 is slow on purpose, so concurrent logins with the same user and secret share one run, and its result is cached
until the broker ends or the user's hash in the file changes. The cache has only a hash of the secret under a random
key. A thousand workers that reconnect at the same time therefore need no new run, and a worker that repeats a wrong
secret needs only one.

Wrong secrets are limited per address and per user. An attacker can't lock out a user: a secret that was accepted before
needs no run, and an address without a wrong secret always gets a run.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ...errors import AccessRefused, BrokerStopping, RetryLater, TooManyLogins
from ...failure_rate_limit import FailureLimit
from ..access.users_file import UsersFile

#: number of wrong secrets that are checked without a delay, and per period after that
FAILURES_PER_ADDRESS = 10
FAILURES_PER_USER = 30
FAILURE_SECONDS = 60.0
#: maximum number of logins that wait for a run: of all addresses, and of one address
MAX_WAITING = 64
MAX_WAITING_PER_ADDRESS = 4
#: maximum number of recorded wrong secrets, addresses and users
_MAX_REMEMBERED = 10_000
_SHOWN = 100
#: maximum number of parallel Argon2 runs, each with 64 MiB and up to four threads
_RUNS_AT_ONCE = min(max((os.cpu_count() or 1) // 2, 1), 4)


def verify(hashed: str, secret: str) -> bool:
    """Return True if the hash is that of the secret; raise RetryLater if the check failed, e.g. for lack of memory."""
    from argon2 import PasswordHasher
    from argon2.exceptions import VerificationError, VerifyMismatchError

    try:
        return PasswordHasher().verify(hashed, secret)
    except VerifyMismatchError:
        return False
    except VerificationError as exc:
        raise RetryLater(f"the login could not be checked: {exc}") from exc


class Logins:
    """Check of users and secrets against a users file.

    Args:
        verify: returns True if a hash is that of a secret; called in a thread.
    """

    def __init__(
        self, users: UsersFile, time: Callable[[], float], verify: Callable[[str, str], bool] = verify
    ) -> None:
        self.users = users
        self._verify = verify
        self.runs = 0  # number of Argon2 runs so far
        self._key = os.urandom(32)
        self._right: dict[str, bytes] = {}  # by user
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[bool]] = {}
        self._waiting: Counter[str] = Counter()  # by address
        self._by_address = FailureLimit(FAILURES_PER_ADDRESS, FAILURE_SECONDS, time)
        self._by_user = FailureLimit(FAILURES_PER_USER, FAILURE_SECONDS, time)
        self._closed = False
        self._threads = ThreadPoolExecutor(_RUNS_AT_ONCE, thread_name_prefix="login")

    def close(self) -> None:
        """Stop checking, at shutdown."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def check(self, user: str, secret: str, address: str) -> str:
        """Check a login; return the user's hash in the file, for :meth:`is_valid`.

        Raises:
            AccessRefused: the user is unknown or the secret is wrong.
            TooManyLogins: there were too many wrong secrets, or too many logins wait.
            BrokerStopping: the broker stops.
        """
        hashed = self.users.hash_of(user)
        digest = self._digest(user, hashed, secret)
        right = self._right.get(user) == digest
        if not right and digest not in self._wrong:
            task = self._running.get(digest)
            if task is None:
                self._check_limits(user, address)
                self._waiting[address] += 1
                task = asyncio.get_running_loop().create_task(self._run(digest, user, hashed, secret, address))
                self._running[digest] = task
            right = await asyncio.shield(task)
        if not right or not self.is_valid(user, hashed):  # the file may have changed during the run
            raise AccessRefused(f"user {user[:_SHOWN]!r} is unknown or the secret is wrong", user=user[:_SHOWN])
        return hashed

    def is_valid(self, user: str, hashed: str) -> bool:
        """Return True if the file still has this hash for the user."""
        return bool(hashed) and self.users.hash_of(user) == hashed

    def _digest(self, user: str, hashed: str, secret: str) -> bytes:
        state = hashlib.blake2b(key=self._key, digest_size=32)
        for text in (user, hashed, secret):
            data = text.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little") + data)
        return state.digest()

    def _check_limits(self, user: str, address: str) -> None:
        if self._closed:
            raise BrokerStopping("the broker is stopping: try again")
        seconds = self._by_address.wait(address)
        if seconds:
            raise TooManyLogins(
                f"too many wrong logins from your address: try again in {seconds:.0f} s", seconds=round(seconds, 1)
            )
        seconds = self._by_user.wait(user[:_SHOWN])
        if seconds and self._by_address.has_failed(address):
            raise TooManyLogins(
                f"too many wrong logins as this user: try again in {seconds:.0f} s", seconds=round(seconds, 1)
            )
        if self._waiting.total() >= MAX_WAITING or self._waiting[address] >= MAX_WAITING_PER_ADDRESS:
            raise TooManyLogins("too many logins are being checked: try again in a second", seconds=1.0)

    async def _run(self, digest: bytes, user: str, hashed: str, secret: str, address: str) -> bool:
        """Run Argon2, also for an unknown user, so that the duration does not reveal whether a user exists."""
        self.runs += 1
        try:
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._threads, self._verify, hashed or self.users.decoy, secret)
        finally:
            del self._running[digest]
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
        if right and hashed:
            self._right[user] = digest
            return True
        self._wrong[digest] = None
        if len(self._wrong) > _MAX_REMEMBERED:
            self._wrong.popitem(last=False)
        self._by_address.failed(address)
        self._by_user.failed(user[:_SHOWN])  # ten thousand long names would take much memory
        return False
