"""A new queue is filled with stored messages: how fast, and what publishers and consumers feel of it (ours only).

The rates without a replay and with one are taken in turns, on the same broker and queue, with the same clients.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import clients
from .kombu_api import Queue
from .peers import Peer, our_broker
from .processes import BenchError, Waiter, run_alone, wait_until
from .results import Results
from .targets import OURS, WITHOUT
from .workloads import PUBLISHERS, Sizes, publish_together, rate

STORED = "bench-stored"
LIVE = "bench-live"
FROM_THE_FIRST = {"x-start": "first", "x-filter": "task = 'bench.add' AND routing_key = 'bench-stored'"}
FILL_STEPS = 4


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return FILL_STEPS + 3 * sizes.rounds


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures everything about replay; calls `step` with a word of progress as it goes."""
    with our_broker(folder / "replay") as peer:
        for name in (STORED, LIVE):
            run_alone(clients.declare, peer, name)
        for number in range(FILL_STEPS):
            publish_together(peer, STORED, sizes.replay // PUBLISHERS // FILL_STEPS)
            step(f"filled {number + 1} of {FILL_STEPS}")
        rates = []
        for number in range(sizes.rounds):
            seen, seconds = run_alone(replay, peer, f"bench-replay-{number}", sizes.replay)
            results.add("replay.time", OURS, seconds / seen * 1e6)
            rates.append(seen / seconds)
            step("replay")
            _live(peer, WITHOUT, sizes, results)
            step("traffic alone")
            run_alone(begin, peer, f"bench-beside-{number}")
            _live(peer, OURS, sizes, results)
            if run_alone(is_done, peer, f"bench-beside-{number}"):
                results.remarks.append("A replay ended before the traffic beside it, so its round says too little.")
            for name in (f"bench-replay-{number}", f"bench-beside-{number}"):
                run_alone(clients.delete, peer, name)
            step("traffic beside a replay")
        each = ", ".join(f"{one:,.0f}" for one in rates)
        results.remarks.append(f"Replay of {sizes.replay:,} messages without other traffic: {each} messages/s.")


def _live(peer: Peer, series: str, sizes: Sizes, results: Results) -> None:
    results.add("replay.publish", series, rate(*publish_together(peer, LIVE, sizes.replay_live_each)))
    results.add(
        "replay.consume", series, rate(run_alone(clients.consume, peer, LIVE, sizes.replay_live_each * PUBLISHERS))
    )


def begin(barrier: Waiter, peer: Peer, name: str) -> None:
    """Declares a queue that begins with the first stored message."""
    with clients.connected(peer) as connection:
        Queue(name, durable=True, queue_arguments=FROM_THE_FIRST)(connection.default_channel).declare()


def replay(barrier: Waiter, peer: Peer, name: str, stored: int) -> tuple[int, float]:
    """Messages looked at and seconds of a replay, by the broker's clock."""
    begin(barrier, peer, name)
    wait_until(lambda: is_done(barrier, peer, name), f"end of the replay into {name}", seconds=600.0)
    found = _cursor(peer, name)
    if found["routed"] < stored:
        raise BenchError(f"only {found['routed']} of {stored} messages came into {name}")
    return found["seen"], max(found["changed_at_ms"] - found["started_at_ms"], 1) / 1000


def is_done(barrier: Waiter, peer: Peer, name: str) -> bool:
    """Whether the replay is over."""
    time.sleep(0.2)  # the broker is to replay, not to answer this
    return bool(_cursor(peer, name)["done"])


def _cursor(peer: Peer, name: str) -> dict[str, Any]:
    messages = importlib.import_module("kombu_opendata.protocol.messages")
    with clients.connected(peer) as connection:
        found: dict[str, Any] = connection.default_channel.connection.call(messages.Cursors(0, [name])).cursors[0]
        return found
