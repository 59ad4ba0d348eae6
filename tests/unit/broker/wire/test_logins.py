"""Logins against a real file with real hashes; those are cheap ones, so that the tests are quick."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from kombu_opendata.broker.wire import logins as module
from kombu_opendata.broker.wire.logins import FAILURES_PER_ADDRESS, FAILURES_PER_USER, Logins
from kombu_opendata.broker.wire.users import UsersFile, hash_secret
from kombu_opendata.errors import AccessRefused, BrokerStopping, InvalidUsersFile, RequestError, TooManyLogins

CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def users_file(folder: Path, **secrets: str) -> UsersFile:
    path = folder / "users"
    path.write_text("".join(f"{name}:{CHEAP.hash(secret)}\n" for name, secret in secrets.items()))
    return UsersFile(path)


def run(folder: Path, test: Callable[[Logins, Time], Awaitable[None]], **secrets: str) -> None:
    async def main() -> None:
        time = Time()
        logins = Logins(users_file(folder, **secrets), time)
        try:
            await test(logins, time)
        finally:
            logins.close()

    asyncio.run(main())


async def guess(logins: Logins, user: str, address: str, count: int, name: str = "wrong") -> None:
    for number in range(count):
        with pytest.raises(AccessRefused):
            await logins.check(user, f"{name}-{number}", address)


def test_a_storm_of_logins_costs_one_run(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        hashes = await asyncio.gather(*(logins.check("alice", "right", f"host-{n % 7}") for n in range(200)))
        assert set(hashes) == {logins.users.hashes["alice"]}
        for _ in range(200):
            await logins.check("alice", "right", "elsewhere")
        assert logins.runs == 1

    run(tmp_path, test, alice="right", bob="other")


def test_a_fleet_with_an_old_secret_costs_one_run_and_locks_nobody_out(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        refusals = await asyncio.gather(
            *(logins.check("alice", "old", "office") for _ in range(200)), return_exceptions=True
        )
        assert {type(refusal) for refusal in refusals} == {AccessRefused}
        assert logins.runs == 1
        await logins.check("alice", "right", "office")

    run(tmp_path, test, alice="right")


def test_a_user_that_is_unknown_costs_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is checked against a hash of the same parameters; which of them is not seen from outside."""
    seen: list[str] = []
    real = module._verify

    def noted(hashed: str, secret: str) -> bool:
        seen.append(hashed)
        return real(hashed, secret)

    monkeypatch.setattr(module, "_verify", noted)

    async def test(logins: Logins, _time: Time) -> None:
        texts = []
        for user in ("alice", "nobody"):
            with pytest.raises(AccessRefused) as caught:
                await logins.check(user, "guess", "a")
            texts.append(caught.value.text.replace(user, "USER"))
        assert texts[0] == texts[1]
        known, decoy = (hashed.split("$") for hashed in seen)
        assert known[:4] == decoy[:4]
        assert list(map(len, known)) == list(map(len, decoy))
        assert known[4:] != decoy[4:]

    run(tmp_path, test, alice="right")


def test_an_address_has_so_many_guesses(tmp_path: Path) -> None:
    async def test(logins: Logins, time: Time) -> None:
        await logins.check("alice", "right", "guesser")
        await guess(logins, "alice", "guesser", FAILURES_PER_ADDRESS)
        runs = logins.runs
        with pytest.raises(TooManyLogins, match=r"too many wrong logins from your address: try again in 6 s") as caught:
            await logins.check("bob", "right too", "guesser")
        assert caught.value.values == {"seconds": 6.0}
        await logins.check("alice", "right", "guesser")  # was right before: it needs no run
        assert logins.runs == runs
        await logins.check("bob", "right too", "another")
        time.now += 6.1
        await guess(logins, "bob", "guesser", 1, "later")
        time.now += 61
        await guess(logins, "bob", "guesser", FAILURES_PER_ADDRESS, "much later")

    run(tmp_path, test, alice="right", bob="right too")


def test_guesses_from_many_addresses_lock_nobody_out(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        for number in range(FAILURES_PER_USER):
            await guess(logins, "alice", f"bot-{number}", 1, f"bot-{number}")
        with pytest.raises(TooManyLogins, match="too many wrong logins as this user"):
            await logins.check("alice", "second guess", "bot-3")
        await logins.check("bob", "right too", "bot-3")
        await logins.check("alice", "right", "her own host")
        await logins.check("alice", "right", "bot-3")

    run(tmp_path, test, alice="right", bob="right too")


def test_guesses_at_once_leave_room_for_others(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        flood = [asyncio.ensure_future(logins.check("alice", f"guess-{n}", "guesser")) for n in range(50)]
        await asyncio.sleep(0)
        await logins.check("alice", "right", "her own host")
        refusals = await asyncio.gather(*flood, return_exceptions=True)
        assert sum(isinstance(refusal, AccessRefused) for refusal in refusals) == module.MAX_WAITING_PER_ADDRESS
        assert sum(isinstance(refusal, TooManyLogins) for refusal in refusals) == 46

    run(tmp_path, test, alice="right")


def test_long_names_are_not_kept(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        await guess(logins, "x" * 8000, "guesser", 1)
        assert len(repr(vars(logins._by_user))) < 1000

    run(tmp_path, test, alice="right")


def test_a_changed_hash_is_what_counts(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        before = await logins.check("alice", "right", "a")
        assert not logins.users.reload()
        users_file(tmp_path, alice="new", bob="b")
        assert logins.users.reload()
        assert not logins.is_valid("alice", before)
        with pytest.raises(AccessRefused):
            await logins.check("alice", "right", "a")
        assert logins.is_valid("alice", await logins.check("alice", "new", "a"))

    run(tmp_path, test, alice="right")


def test_a_file_that_changes_while_a_login_is_checked(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        checking = asyncio.ensure_future(logins.check("alice", "right", "a"))
        await asyncio.sleep(0)
        users_file(tmp_path, bob="b")
        assert logins.users.reload()
        with pytest.raises(AccessRefused):
            await checking

    run(tmp_path, test, alice="right")


def test_a_broker_that_stops_says_so(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        logins.close()
        with pytest.raises(BrokerStopping):
            await logins.check("alice", "right", "a")

    run(tmp_path, test, alice="right")


def test_no_secret_is_kept(tmp_path: Path) -> None:
    async def test(logins: Logins, _time: Time) -> None:
        await logins.check("alice", "right-secret", "a")
        await guess(logins, "alice", "a", 1, "wrong-secret")
        kept = repr((vars(logins), vars(logins.users)))
        assert "right-secret" not in kept
        assert "wrong-secret" not in kept

    run(tmp_path, test, alice="right-secret")


# ------------------------------------------------------------------ the file
HASH = CHEAP.hash("secret")


@pytest.mark.parametrize(
    ("data", "line", "text"),
    [
        (b"alice:secret\n", 1, "has no Argon2 hash for user 'alice': make one with opendata-queue hash-secret"),
        (b"# users\n\nalice:%b\nbob:%b" % (HASH.encode(), HASH[:-6].encode()), 4, "has no Argon2 hash for user 'bob'"),
        (b"alice:" + HASH.replace("m=64", "m=99999999").encode(), 1, "has no Argon2 hash"),
        (b"alice:\n", 1, "has no Argon2 hash"),
        (b"alice\n", 1, "has no name and hash with a colon in between"),
        (b":" + HASH.encode(), 1, "has no name and hash"),
        (b"alice:%b\nal\xefce:%b" % (HASH.encode(), HASH.encode()), 2, "is not UTF-8"),
        (b"alice:%b\nalice:%b" % (HASH.encode(), HASH.encode()), 2, "names user 'alice' a second time"),
        (b"# nobody\n", 0, "names no user, so nobody could log in"),
        (None, 0, "can't be read: No such file or directory"),
    ],
    # Not the data, which has a random salt: each process of a distributed run must collect the same names.
    ids=[
        "plain text",
        "cut hash",
        "costly hash",
        "no hash",
        "no colon",
        "no name",
        "bytes",
        "twice",
        "empty",
        "missing",
    ],
)
def test_a_file_that_can_not_be_used(tmp_path: Path, data: bytes | None, line: int, text: str) -> None:
    path = tmp_path / "users"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidUsersFile, match=text) as caught:
        UsersFile(path)
    assert caught.value.values == {"path": str(path), "line": line}
    assert "secret\n" not in caught.value.text


def test_what_hash_secret_makes_is_a_users_line(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f" # who\n\n alice : {hash_secret('sécret')} \nbob:{HASH}\n")
    assert set(UsersFile(path).hashes) == {"alice", "bob"}
    with pytest.raises(RequestError, match="the secret is empty"):
        hash_secret("")


def test_a_file_that_breaks_leaves_the_users_as_they_were(tmp_path: Path) -> None:
    users = users_file(tmp_path, alice="a")
    path, before = users.path, dict(users.hashes)
    path.write_text("alice:plain\n")
    with pytest.raises(InvalidUsersFile, match="line 1"):
        users.reload()
    assert not users.reload(), "said once for each change"
    path.unlink()
    with pytest.raises(InvalidUsersFile, match="can't be read"):
        users.reload()
    assert not users.reload()
    assert users.hashes == before
    path.write_text(f"bob:{HASH}\n")
    os.utime(path, ns=(5, 5))
    assert users.reload()
    assert set(users.hashes) == {"bob"}
