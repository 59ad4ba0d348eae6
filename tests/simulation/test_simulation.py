"""Runs of the simulation, their exact repetition, and the shrinking of a script."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from itertools import count

import msgspec
import pytest

from kombu_opendata.storage.commit.journal_format import RECORD, checksum, complete_records, encode_header
from kombu_opendata.storage.effects import codec
from kombu_opendata.storage.effects.deliveries import RenewEffect
from kombu_opendata.storage.effects.publishes import SyncedTimeEffect
from tests.histories.events import ClockSet, Started
from tests.simulation.loop import SimulatedLoop
from tests.simulation.older_version import older_segment
from tests.simulation.plan import Plan, Step, Store, draw
from tests.simulation.shrinking import script_of, shrink
from tests.simulation.world import World

pytestmark = pytest.mark.contract(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)
NOW = {"choice": 0.0, "seconds": 0.0}


@pytest.mark.parametrize("store", ["folder", "bucket"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_run_keeps_the_contract(seed: int, store: Store) -> None:
    outcome = World(draw(seed, 300, store)).run()
    assert not outcome.anomalies
    assert outcome.messages


@pytest.mark.parametrize("store", ["folder", "bucket"])
def test_a_seed_repeats_a_run_exactly(store: Store) -> None:
    plan = draw(3, 250, store)
    first, second = World(plan).run(), World(msgspec.json.decode(script_of(plan), type=Plan)).run()
    assert (first.trace, first.steps, first.faults) == (second.trace, second.steps, second.faults)
    assert World(draw(4, 250, store)).run().trace != first.trace


def test_a_slow_machine_changes_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over = Step(4.0, "", "hand_over", {"choice": 0.1, "seconds": 0.1})
    plan = Plan(3, "bucket", (*draw(3, 50, "bucket").steps, hand_over))
    trace = World(plan).run().trace
    minutes = count(time.monotonic(), 60)
    monkeypatch.setattr(time, "monotonic", lambda: next(minutes))
    assert World(plan).run().trace == trace


def test_a_broker_without_its_bucket_is_replaced() -> None:
    isolate = Step(0.1, "", "isolate_broker", {"choice": 0.1, "seconds": 4.0})
    steps = draw(3, 300, "bucket").steps
    begun = tuple(step for step in steps if step.actor)
    outcome = World(Plan(3, "bucket", (*begun[:100], isolate, *begun[100:], Step(10.0, "", "reset", NOW)))).run()
    assert outcome.history is not None
    events = outcome.history.events
    assert {event.broker for event in events if isinstance(event, Started)} == {"a", "b"}
    (ahead,) = (event.seconds for event in events if isinstance(event, ClockSet))
    assert ahead == pytest.approx(1.5, abs=0.1)  # the clock of the other broker's host
    assert not outcome.anomalies


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_on_the_real_slatedb_keeps_the_contract(seed: int) -> None:
    outcome = World(draw(seed, 200, "slatedb")).run()
    assert not outcome.anomalies
    assert outcome.messages


def test_a_script_shrinks_to_what_matters() -> None:
    plan = draw(3, 40, "folder")
    publishes = (step.arguments for step in plan.steps if step.action == "publish")
    key = next(arguments["key"] for arguments in publishes if not arguments.keys() & {"ttl", "unique"})

    def has_message(shorter: Plan) -> bool:
        history = World(shorter).run().history
        return history is not None and any(entry.key == key for entry in history.store.entries)

    assert [step.arguments["key"] for step in shrink(plan, has_message).steps] == [key]


def test_time_passes_until_the_shortest_timer() -> None:
    loop = SimulatedLoop(random.Random(1))

    async def is_over() -> bool:
        deadline = loop.time() + 1e-12
        loop.call_soon(loop.time)  # as long as there is something to do, the loop does not wait for the timer
        await asyncio.sleep(deadline - loop.time())
        return loop.time() >= deadline

    assert loop.run_until_complete(is_over())
    loop.close()


def test_an_older_segment_lacks_later_fields() -> None:
    payload = codec.encode([RenewEffect(b"session", 5, 9), SyncedTimeEffect(4, 7)])
    record = RECORD.pack(len(payload), checksum(1, payload), 1) + payload
    segment = (encode_header(1, 1) + record).ljust(500, b"\0")
    older = older_segment(segment)
    assert older is not None
    assert len(older) == len(segment)
    (found,) = complete_records(older, 1, 0)
    assert codec.decode(found.payload) == [RenewEffect(b"session", 5), SyncedTimeEffect(4)]
    assert older_segment(bytes(500)) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_100_000_steps_keep_the_contract() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--steps", "100000", "--no-shrinking"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr[-2000:]
