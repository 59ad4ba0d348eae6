"""The active lease ends by the time since the boot; waiters continue when it is extended, or fail if it is lost."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.broker.delivery.active_lease import ActiveLease, seconds_since_boot
from kombu_opendata.errors import StoreFenced
from tests.support.waiting import turns


def test_where_nobody_can_take_over_it_never_ends() -> None:
    async def main() -> None:
        active_lease = ActiveLease()
        assert not active_lease.is_over
        await active_lease.renewed()

    asyncio.run(main())


def test_what_waits_goes_on_when_it_is_extended() -> None:
    async def main() -> None:
        active_lease = ActiveLease()
        active_lease.extend(seconds_since_boot() - 1)
        assert active_lease.is_over
        waiting = asyncio.ensure_future(active_lease.renewed())
        active_lease.extend(seconds_since_boot() - 0.5)  # a read that took too long
        await turns()
        assert not waiting.done()
        active_lease.extend(seconds_since_boot() + 60)
        await waiting

    asyncio.run(main())


def test_what_waits_fails_when_it_is_lost_and_it_stays_lost() -> None:
    async def main() -> None:
        active_lease = ActiveLease()
        active_lease.extend(seconds_since_boot() - 1)
        waiting = asyncio.ensure_future(active_lease.renewed())
        await turns()
        active_lease.lose(StoreFenced("first"))
        active_lease.lose(StoreFenced("second"))
        active_lease.extend(seconds_since_boot() + 60)
        assert active_lease.is_over
        with pytest.raises(StoreFenced, match="first"):
            await waiting

    asyncio.run(main())
