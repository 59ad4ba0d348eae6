"""Leases that ended while no broker ran: their session has a grace to come back, then they return to the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.protocol import messages as m

from ..support.processes import Children
from ..support.raw import RawClient
from ..support.served import ServedBroker

pytestmark = pytest.mark.contract(3, 4)

LEASE_SECONDS = 1


def test_a_lease_that_ended_meanwhile_is_resumed_or_returns(
    store_folder: Path, tmp_path: Path, started: Children
) -> None:
    path = f"{store_folder}/broker.sock"
    options = ("--store", f"file://{store_folder}", "--listen", f"unix:{path}")
    broker = ServedBroker(tmp_path, *options, lease_seconds=LEASE_SECONDS)
    started.add(broker)
    with RawClient(path) as raw:
        raw.hello()
        raw.declare("q")
        for seq in (1, 2):
            raw.publish("q", seq)
        raw.consume("q")
        held = raw.wait_deliveries(2)[0]
        broker.kill()

    # the leases have ended by the clock of the next broker
    started.add(ServedBroker(tmp_path, *options, lease_seconds=LEASE_SECONDS, clock_ahead=1.5 * LEASE_SECONDS))
    with RawClient(path) as again:
        assert again.hello(raw.session, resume=True, held=[(1, *held.lease)]).adopted == 1
    with RawClient(path) as other:
        other.sock.settimeout(60)  # the grace of this broker's clients is long, so that the first is in time for sure
        other.hello()
        other.consume("q")
        # The one that was not held at once; the other one when its session has not come back in time.
        redelivered = other.wait_deliveries(2)
        assert [delivery.attempts for delivery in redelivered] == [1, 2], (
            "only the lease that was given up cost an attempt"
        )
        other.send(m.Settle(2, m.Outcome.ACK, 1, [delivery.lease for delivery in redelivered]))
        assert other.call(m.Goodbye(0))
