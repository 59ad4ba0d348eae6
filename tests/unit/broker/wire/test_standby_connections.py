"""Clients pass an open gate, wait at one that holds them, and are sent away by a standby's."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.broker.wire.standby_connections import Gate
from kombu_opendata.errors import NotActive
from tests.support.waiting import turns


def test_clients_that_wait_pass_when_it_opens_and_leave_when_another_broker_is_active() -> None:
    async def main() -> None:
        gate = Gate()
        gate.hold()
        first = asyncio.ensure_future(gate.check())
        await turns()
        assert not first.done()
        gate.open()
        await first
        gate.hold()
        second = asyncio.ensure_future(gate.check())
        await turns()
        gate.active = ("a:5677", "b:5677")
        gate.send_away()
        with pytest.raises(NotActive, match="connect to a:5677, b:5677") as caught:
            await second
        assert caught.value.active == "a:5677,b:5677"

    asyncio.run(main())
