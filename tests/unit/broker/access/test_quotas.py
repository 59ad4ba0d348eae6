"""Quotas: publishes a second in turns, and which limits count for an instance."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.access.quotas import Quota, Quotas
from kombu_opendata.broker.access.rights import User
from kombu_opendata.broker.access.users_format import InstanceTable, LimitsTable, UserTable
from kombu_opendata.errors import LimitExceeded

pytestmark = pytest.mark.contract(16)


def test_publishes_a_second() -> None:
    quota = Quota("user 'a'", LimitsTable(publishes_per_second=10))
    assert [quota.delay(1, 100.0) for _ in range(10)] == [0.0] * 10  # those of a second at once
    assert quota.delay(1, 100.0) == pytest.approx(0.1)
    assert quota.delay(1, 100.0) == pytest.approx(0.2)  # each behind the one before
    assert quota.delay(1, 100.3) == pytest.approx(0.0)
    assert quota.delay(5, 100.3) == pytest.approx(0.5)  # a batch counts its messages
    assert quota.delay(1, 1000.0) == 0.0
    assert quota.delay(10, 1000.0) == pytest.approx(0.1)  # a pause saves no more than a second


def test_no_rate() -> None:
    assert Quota("everybody", LimitsTable()).delay(1_000_000, 1.0) == 0.0


def test_the_limits_of_an_instance_are_its_own_or_those_of_all() -> None:
    quotas = Quotas(LimitsTable(queues=5, bindings=7))
    before = quotas.of("u", "mine").instance
    quotas.update(
        {"u": User("u", UserTable(limits=LimitsTable(consumers=1)))}, {"mine": InstanceTable(LimitsTable(queues=9))}
    )
    found = quotas.of("u", "mine")
    assert found.instance is before  # of those who are connected, too
    assert (found.instance.limits.queues, found.instance.limits.bindings) == (9, 7)
    assert found.user.limits.consumers == 1
    quotas.update({}, {})
    assert found.instance.limits == LimitsTable(queues=5, bindings=7)
    assert found.user.limits == LimitsTable()


def test_the_error() -> None:
    quota = Quota("user 'a'", LimitsTable(message_bytes=100))
    quota.check("message_bytes", 100)
    with pytest.raises(LimitExceeded, match="user 'a' may have messages of 100 bytes at most") as caught:
        quota.check("message_bytes", 101)
    assert caught.value.values == {"limit": "message-bytes", "value": 100, "whose": "user 'a'"}
