"""One round of what messages cost a broker: its CPU, and bytes written to the device.

A client asks for the CPU time of the broker right before its first measured message and right after its last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import clients
from .clients import Timing
from .machine import written_bytes
from .peers import Peer, server_pid
from .processes import BenchError, Waiter, run_together, tree_cpu_seconds, wait_until
from .results import Results
from .workloads import PUBLISHERS, Sizes, a_queue, unconfirmed

AFTERWORK_SECONDS = 2.0
_NO_DEVICE = "Bytes written: the folder is on no device that /proc/diskstats lists, so they were not measured."


class Spent(NamedTuple):
    """One client's messages, and the broker's CPU time in seconds before and after them."""

    messages: int
    before: float
    after: float


def measure_round(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    """Add a sample of each row: publish in four ways into one queue, consume it, and wait for the afterwork."""
    with a_queue(peer, "cpu") as name:
        pid, spent, written = server_pid(peer), _server_cpu(peer), written_bytes(folder)
        count = _publishes(peer, name, sizes, results)
        consumed = _together(peer, name, clients.consume, 1, count)
        results.add("cpu.consumed", peer.name, microseconds(consumed))
        if (taken := sum(one.messages for one in consumed)) != count:
            raise BenchError(f"{taken} deliveries of {count} messages")
        time.sleep(AFTERWORK_SECONDS)
        if server_pid(peer) != pid:
            raise BenchError("the broker was restarted during the round")
        results.add("cpu.all", peer.name, (_server_cpu(peer) - spent) / count * 1e6)
        now = written_bytes(folder)
        if written is not None and now is not None:
            results.add("cpu.written", peer.name, (now - written) / count)
        elif _NO_DEVICE not in results.remarks:
            results.remarks.append(_NO_DEVICE)


def _publishes(peer: Peer, name: str, sizes: Sizes, results: Results) -> int:
    """Publish in each way; return the number of messages."""
    streaming = unconfirmed(peer)
    count = 0
    for key, client, publishers, messages in (
        ("cpu.alone", peer, 1, sizes.publish),
        ("cpu.stream", streaming, 1, sizes.consume),
        ("cpu.stream2", streaming, 2, sizes.consume),
        ("cpu.eight", peer, PUBLISHERS, sizes.publish_each * PUBLISHERS),
    ):
        count += messages
        if client is streaming:
            spent = _together(client, name, _publish_and_wait, publishers, messages, count)
        else:
            spent = _together(client, name, clients.publish, publishers, messages)
        results.add(key, peer.name, microseconds(spent))
    return count


def microseconds(clients_spent: list[Spent]) -> float:
    """The broker's CPU time per message, from the first client's start to the last one's end."""
    seconds = max(one.after for one in clients_spent) - min(one.before for one in clients_spent)
    return seconds / sum(one.messages for one in clients_spent) * 1e6


def _together(
    peer: Peer, name: str, function: Callable[..., Timing], processes: int, messages: int, *more: int
) -> list[Spent]:
    return run_together(_spend, [(peer, name, function, messages // processes, *more)] * processes)


def _spend(barrier: Waiter, peer: Peer, name: str, function: Callable[..., Timing], *arguments: int) -> Spent:
    """Call a client's function; its work before the barrier is not measured."""
    start = _Start(barrier, peer)
    timing = function(start, peer, name, *arguments)
    return Spent(timing.messages, start.spent, _server_cpu(peer))


def _publish_and_wait(barrier: Waiter, peer: Peer, name: str, count: int, in_all: int) -> Timing:
    """Publish, and wait until the queue has `in_all` messages, as some are not confirmed."""
    timing = clients.publish(barrier, peer, name, count)
    with clients.connected(peer) as connection:
        wait_until(
            lambda: clients.waiting_in(connection, peer, name) >= in_all, f"{in_all} messages in {name}", seconds=60.0
        )
    return timing


class _Start:
    """A barrier that notes the broker's CPU time once all are there."""

    def __init__(self, barrier: Waiter, peer: Peer) -> None:
        self._barrier, self._peer = barrier, peer
        self.spent = 0.0

    def wait(self) -> None:
        self._barrier.wait()
        self.spent = _server_cpu(self._peer)


def _server_cpu(peer: Peer) -> float:
    return tree_cpu_seconds(server_pid(peer))
