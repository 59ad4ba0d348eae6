"""Logins against a real file with real hashes; those are cheap ones, so that the tests are quick."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kombu_opendata.broker.access.users_file import UsersFile
from kombu_opendata.broker.wire.logins import (
    FAILURES_PER_ADDRESS,
    FAILURES_PER_USER,
    MAX_WAITING_PER_ADDRESS,
    Logins,
    verify,
)
from kombu_opendata.errors import AccessRefused, BrokerStopping, TooManyLogins
from tests.support.users import user_table, write_users
from tests.support.waiting import turns


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def users_file(folder: Path, **secrets: str) -> UsersFile:
    path = folder / "users"
    write_users(path, *(user_table(name, secret) for name, secret in secrets.items()))
    return UsersFile(path)


def run(
    folder: Path,
    test: Callable[[Logins, Time], Awaitable[None]],
    verify: Callable[[str, str], bool] = verify,
    **secrets: str,
) -> None:
    async def main() -> None:
        time = Time()
        logins = Logins(users_file(folder, **secrets), time, verify)
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
        assert set(hashes) == {logins.users.hash_of("alice")}
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


def test_a_user_that_is_unknown_costs_the_same_run(tmp_path: Path) -> None:
    """Each is checked against a hash of the same parameters; which of them is not seen from outside."""
    seen: list[str] = []

    def noted(hashed: str, secret: str) -> bool:
        seen.append(hashed)
        return verify(hashed, secret)

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

    run(tmp_path, test, noted, alice="right")


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
        await turns()
        await logins.check("alice", "right", "her own host")
        refusals = await asyncio.gather(*flood, return_exceptions=True)
        assert sum(isinstance(refusal, AccessRefused) for refusal in refusals) == MAX_WAITING_PER_ADDRESS
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
        await turns()
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
