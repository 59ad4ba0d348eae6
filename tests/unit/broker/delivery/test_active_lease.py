"""A tenure ends by the time since the boot; what waits for it goes on when it is extended, or fails when it is lost."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.broker.delivery.active_lease import ActiveLease, seconds_since_boot
from kombu_opendata.errors import StoreFenced


def test_where_nobody_can_take_over_it_never_ends() -> None:
    async def main() -> None:
        tenure = ActiveLease()
        assert not tenure.is_over
        await tenure.renewed()

    asyncio.run(main())


def test_what_waits_goes_on_when_it_is_extended() -> None:
    async def main() -> None:
        tenure = ActiveLease()
        tenure.extend(seconds_since_boot() - 1)
        assert tenure.is_over
        waiting = asyncio.ensure_future(tenure.renewed())
        tenure.extend(seconds_since_boot() - 0.5)  # a read that took too long
        await asyncio.sleep(0)
        assert not waiting.done()
        tenure.extend(seconds_since_boot() + 60)
        await waiting

    asyncio.run(main())


def test_what_waits_fails_when_it_is_lost_and_it_stays_lost() -> None:
    async def main() -> None:
        tenure = ActiveLease()
        tenure.extend(seconds_since_boot() - 1)
        waiting = asyncio.ensure_future(tenure.renewed())
        await asyncio.sleep(0)
        tenure.lose(StoreFenced("first"))
        tenure.lose(StoreFenced("second"))
        tenure.extend(seconds_since_boot() + 60)
        assert tenure.is_over
        with pytest.raises(StoreFenced, match="first"):
            await waiting

    asyncio.run(main())
