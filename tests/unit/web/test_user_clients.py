"""Answers that open pages share: how old they may be, and when the broker is asked again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from kombu_opendata import AsyncQueueClient
from kombu_opendata.errors import AccessRefused, ConnectionLost
from kombu_opendata.protocol.messages import Identity
from kombu_opendata.web.settings import WebSettings
from kombu_opendata.web.user_clients import Brokers, UserBroker, note_ages
from tests.support.waiting import turns


def answers(*seconds: float, pause: float = 0.01) -> list[int]:
    """Answers that are asked for one after the other, and take so many seconds; the last one takes no time."""
    times = [*seconds, 0.0]
    asked, now = 0, 1000.0

    async def show_dialog() -> int:
        nonlocal asked, now
        now += times[asked]
        asked += 1
        return asked

    async def recent(broker: UserBroker) -> int:
        nonlocal now
        answer = await broker.recent("figures", 0.0, show_dialog)
        now += pause  # older than it may be
        return answer

    async def all_answers() -> list[int]:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: now)
            return [await recent(broker) for _ in times]

    return asyncio.run(all_answers())


def test_an_answer_that_waited_for_a_new_connection_is_soon_asked_for_again() -> None:
    assert answers(0.1) == [1, 2], "100 ms once, as after a restart of the broker, were 20 s without an update"


def test_what_takes_the_broker_long_each_time_is_asked_for_less_often() -> None:
    assert answers(0.1, 0.1, 0.0) == [1, 2, 2, 2]


def test_what_takes_the_broker_long_is_asked_for_after_two_hundred_times_as_long() -> None:
    assert answers(0.1, 0.1, 0.0, pause=20.1) == [1, 2, 3, 4]


def test_an_error_is_no_answer() -> None:
    async def both() -> int:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client)

            async def fail() -> int:
                await turns()
                raise OSError

            async def show_dialog() -> int:
                return 1

            try:
                await broker.recent("figures", 60.0, fail)
            except OSError:
                return await broker.recent("figures", 60.0, show_dialog)
            return 0

    assert asyncio.run(both()) == 1


def test_callers_of_one_request_get_its_error() -> None:
    async def both() -> list[BaseException | None]:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client)

            async def fail() -> None:
                await turns()
                raise OSError

            calls = [broker.recent("figures", 60.0, fail) for _ in range(2)]
            return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in asyncio.run(both())] == [OSError, OSError]


def test_results_are_dropped_two_minutes_after_their_request() -> None:
    now = 1000.0

    async def loads() -> list[int]:
        nonlocal now
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker, numbers = UserBroker(client, now=lambda: now), iter(range(9))

            async def show_dialog() -> int:
                return next(numbers)

            results = []
            for seconds, key in (0, "first"), (119, "second"), (0, "first"), (1, "third"), (0, "first"):
                now += seconds
                results.append(await broker.recent(key, 500.0, show_dialog))
            return results

    assert asyncio.run(loads()) == [0, 1, 0, 2, 3]


def test_a_task_learns_how_much_older_than_usual_its_answers_are() -> None:
    now = 1000.0

    async def ages() -> tuple[list[float], list[float]]:
        nonlocal now
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: now)

            async def show_dialog() -> int:
                nonlocal now
                now += 0.1
                return 1

            async def record(seconds: float) -> list[float]:
                ages_of_task = note_ages()
                await asyncio.gather(broker.recent("figures", seconds, show_dialog))
                return ages_of_task

            await record(0.0)
            await record(0.0)
            fresh = await record(60.0)
            now += 0.1
            return fresh, await record(0.0)  # from before, as both answers took long

    fresh, old = asyncio.run(ages())
    assert max(fresh) == 0.0
    assert max(old) >= 0.1


def test_a_result_is_fresh_until_it_is_older_than_the_caller_allows() -> None:
    now = 1000.0

    async def both() -> list[int]:
        nonlocal now
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker, numbers = UserBroker(client, now=lambda: now), iter((1, 2))

            async def show_dialog() -> int:
                return next(numbers)

            results = []
            for seconds in (0.0, 2.0, 0.5):
                now += seconds
                results.append(await broker.recent("figures", 2.0, show_dialog))
            return results

    assert asyncio.run(both()) == [1, 1, 2]


def test_without_patience_a_caller_gets_the_previous_result_and_the_error_of_the_request_is_no_loose_end() -> None:
    now, loose_ends = 1000.0, []

    async def both() -> int:
        nonlocal now
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: loose_ends.append(context))
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: now)

            async def show_dialog() -> int:
                return 1

            gone = asyncio.Event()

            async def fail() -> int:
                await gone.wait()
                raise OSError

            await broker.recent("figures", 0.0, show_dialog)
            now += 1
            result = await broker.recent("figures", 0.0, fail, patience=0)
            gone.set()
            await turns(3)
            broker.forget_answers()
            gc.collect()
            return result

    assert asyncio.run(both()) == 1
    assert loose_ends == []


def test_a_client_is_new_until_the_broker_accepts_its_user() -> None:
    async def main() -> None:
        async with AsyncQueueClient("opendata:///nowhere") as client:
            broker = UserBroker(client, now=lambda: 1000.0)
            assert broker.client is client
            assert (broker.was_entered, broker.expects_standby, broker.who, broker.metrics) == (
                False,
                False,
                None,
                None,
            )
            assert broker.last_used_at == 1000.0

    asyncio.run(main())


@asynccontextmanager
async def brokers(**settings: Any) -> AsyncIterator[Brokers]:
    found = Brokers(WebSettings("opendata://127.0.0.1:1,127.0.0.1:2", **settings))
    try:
        yield found
    finally:
        await found.close()


def with_brokers(steps: Callable[[Brokers], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with brokers(**settings) as found:
            await steps(found)

    asyncio.run(main())


def identity(user: str) -> Identity:
    return Identity(1, user, "", "default", [], "", "", "")


def answer(broker: UserBroker, user: str | Exception) -> None:
    """Let the broker say who its user is, or fail."""

    async def whoami() -> Identity:
        if isinstance(user, Exception):
            raise user
        return identity(user)

    broker.client.whoami = whoami  # type: ignore[method-assign]


def test_each_login_has_a_client_of_its_own() -> None:
    async def steps(brokers: Brokers) -> None:
        own, ann = brokers.of(), brokers.of("ann", "secret")
        assert brokers.of() is own
        assert brokers.of("ann", "secret") is ann
        others = [brokers.of("ann", "other"), brokers.of("anns", "ecret"), brokers.of("", "", "ann")]
        assert len({own, ann, *others}) == 5
        assert len({each.key for each in (own, ann, *others)}) == 5
        assert (brokers.find(ann.key), brokers.find("unknown")) == (ann, None)
        assert brokers.of(act_as="\udc80") is not brokers.of(act_as="\udc81"), "names that are not UTF-8"
        for broker, login in (own, ("", "", "")), (ann, ("ann", "secret", "")), (others[2], ("", "", "ann")):
            connections = broker.client.blocking.connections
            assert (connections.address.user, connections.address.secret, connections.options.act_as) == login
        assert own.expects_standby, "the URL names two brokers"
        assert not Brokers(WebSettings("opendata://127.0.0.1:1")).of().expects_standby

    with_brokers(steps)


def test_keys_of_logins_can_not_be_derived_from_their_secrets() -> None:
    async def steps(brokers: Brokers) -> None:
        other = Brokers(WebSettings("opendata://127.0.0.1:1"))
        assert brokers.of("ann", "secret").key != other.of("ann", "secret").key
        await other.close()

    with_brokers(steps)


def test_the_broker_must_accept_a_user() -> None:
    async def steps(brokers: Brokers) -> None:
        ann = brokers.of("ann", "secret")
        answer(ann, "ann")
        assert await brokers.entered("ann", "secret") is ann
        assert (ann.was_entered, ann.who) == (True, identity("ann"))

        without_users = brokers.of("bob", "secret")
        answer(without_users, "")
        with pytest.raises(AccessRefused, match="start it with --users"):
            await brokers.entered("bob", "secret")
        assert brokers.find(without_users.key) is None

    with_brokers(steps)


@pytest.mark.parametrize(("user", "accepted"), [("ann", True), ("", True), ("web", False)])
def test_a_proxy_acts_as_its_user_or_the_broker_has_none(user: str, accepted: bool) -> None:
    async def steps(brokers: Brokers) -> None:
        broker = brokers.of(act_as="ann")
        answer(broker, user)
        if accepted:
            assert await brokers.entered(act_as="ann") is broker
        else:
            with pytest.raises(AccessRefused, match="act as 'ann'"):
                await brokers.entered(act_as="ann")

    with_brokers(steps)


def test_an_unreachable_broker_ends_only_logins_that_it_has_not_accepted() -> None:
    async def steps(brokers: Brokers) -> None:
        ann = brokers.of("ann", "secret")
        answer(ann, "ann")
        await brokers.entered("ann", "secret")
        ann.forget_answers()
        other = brokers.of("ann", "other")
        for broker, secret in (ann, "secret"), (other, "other"):
            answer(broker, ConnectionLost("no answer"))
            with pytest.raises(ConnectionLost):
                await brokers.entered("ann", secret)
        assert (brokers.find(ann.key), brokers.find(other.key)) == (ann, None)

    with_brokers(steps)


def test_unused_clients_are_closed() -> None:
    async def steps(brokers: Brokers) -> None:
        own = brokers.of()
        old, newer, old_too = (brokers.of(name, "x") for name in ("old", "newer", "old too"))
        own.used_at = old.used_at = old_too.used_at = monotonic() - 160.5
        newer.used_at = monotonic() - 150
        brokers.of("newest", "x")
        assert [brokers.find(each.key) for each in (own, old, newer, old_too)] == [own, None, newer, None]
        assert monotonic() - newer.used_at < 100, "a search is a use"

    with_brokers(steps, session_idle_seconds=100.0)


def test_of_many_clients_those_that_were_not_used_for_longest_are_closed() -> None:
    async def steps(brokers: Brokers) -> None:
        own = brokers.of()
        many = [brokers.of(f"user{number}", "x") for number in range(64)]
        assert all(brokers.find(each.key) for each in many)
        brokers.of("user0", "x")
        brokers.of("another", "x")
        assert brokers.find(many[1].key) is None
        assert all(brokers.find(each.key) for each in (own, many[0], *many[2:]))

    with_brokers(steps)


def test_a_client_that_is_forgotten_is_closed() -> None:
    closed = []

    async def steps(brokers: Brokers) -> None:
        async def close(broker: UserBroker) -> None:
            await turns()
            closed.append(broker)

        ann, bob, joe = (brokers.of(name, "x") for name in ("ann", "bob", "joe"))
        for each in (ann, bob, joe):
            each.close = lambda each=each: close(each)  # type: ignore[method-assign, misc]
        brokers.forget(ann)
        brokers.forget(ann)
        brokers.forget(joe)
        assert brokers.find(ann.key) is None
        await brokers.close()
        assert closed == [bob, ann, joe]
        assert brokers.find(bob.key) is None

    with_brokers(steps)
