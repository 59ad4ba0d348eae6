"""A new queue that is filled with stored messages: its speed, and the rates of other clients beside it (ours only).

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
from .workloads import PUBLISHERS, Sizes, publish_and_consume, publish_together

STORED, LIVE = "bench-stored", "bench-live"
FROM_THE_FIRST = {"x-start": "first", "x-filter": "task = 'bench.add' AND routing_key = 'bench-stored'"}


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    def live(series: str) -> None:
        published, consumed = publish_and_consume(peer, LIVE, sizes.replay_live_each)
        results.add("replay.publish", series, published)
        results.add("replay.consume", series, consumed)

    with our_broker(folder / "replay") as peer:
        run_alone(clients.declare, peer, STORED, LIVE)
        publish_together(peer, STORED, sizes.replay // PUBLISHERS)
        rates = []
        for number in range(sizes.rounds):
            step(f"replay, round {number + 1}")
            seen, seconds = run_alone(replay, peer, f"bench-replay-{number}", sizes.replay)
            results.add("replay.time", OURS, seconds / seen * 1e6)
            rates.append(f"{seen / seconds:,.0f}")
            live(WITHOUT)
            run_alone(begin, peer, f"bench-beside-{number}")
            live(OURS)
            if run_alone(is_done, peer, f"bench-beside-{number}"):
                results.remarks.append("A replay ended before the traffic beside it, so its round is not comparable.")
            run_alone(clients.delete, peer, f"bench-replay-{number}", f"bench-beside-{number}")
        results.remarks.append(
            f"Replay of {sizes.replay:,} messages without other traffic: {', '.join(rates)} messages/s."
        )


def begin(barrier: Waiter, peer: Peer, name: str) -> None:
    """Declare a queue that begins with the first stored message."""
    with clients.connected(peer) as connection:
        Queue(name, durable=True, queue_arguments=FROM_THE_FIRST)(connection.default_channel).declare()


def replay(barrier: Waiter, peer: Peer, name: str, stored: int) -> tuple[int, float]:
    """Return the messages read and the seconds of a replay, by the broker's clock."""
    begin(barrier, peer, name)
    wait_until(lambda: is_done(barrier, peer, name), f"end of the replay into {name}", seconds=600.0)
    cursor = _cursor(peer, name)
    if cursor["routed"] < stored:
        raise BenchError(f"only {cursor['routed']} of {stored} messages came into {name}")
    return cursor["seen"], max(cursor["changed_at_ms"] - cursor["started_at_ms"], 1) / 1000


def is_done(barrier: Waiter, peer: Peer, name: str) -> bool:
    time.sleep(0.2)  # the broker is to replay, not to answer this
    return bool(_cursor(peer, name)["done"])


def _cursor(peer: Peer, name: str) -> dict[str, Any]:
    messages = importlib.import_module("kombu_opendata.protocol.messages")
    with clients.connected(peer) as connection:
        cursor: dict[str, Any] = connection.default_channel.connection.call(messages.Cursors(0, [name])).cursors[0]
        return cursor
