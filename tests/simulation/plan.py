"""Plans of runs: the steps of clients and faults, drawn from a seed before a run, so that it can run with fewer."""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

QUEUES = ("orders", "mail", "jobs")
DEAD_LETTERS = "dead"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "orders": {},
    "mail": {"x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD_LETTERS},
    "jobs": {"x-delivery-limit": 5},
    DEAD_LETTERS: {},
}


class Step(msgspec.Struct, frozen=True):
    """A step, ``after`` so many seconds since the one before it.

    Attributes:
        actor: the client or the broker; empty for what concerns all.
        action: a method of the client, or of the faults.
    """

    after: float
    actor: str
    action: str
    arguments: dict[str, Any] = {}


class Plan(msgspec.Struct, frozen=True):
    """All that determines a run.

    Attributes:
        store: one broker with a folder, or two with a bucket.
        faults: whether any fault comes.
    """

    seed: int
    store: Literal["folder", "bucket"]
    steps: tuple[Step, ...]

    @property
    def brokers(self) -> tuple[str, ...]:
        return ("a",) if self.store == "folder" else ("a", "b")


PRODUCERS = ("producer0", "producer1")
CONSUMERS = ("consumer0", "consumer1", "consumer2")
READERS = ("reader0",)
CLIENTS = (*PRODUCERS, *CONSUMERS, *READERS)

#: what happens to a delivery, with weights
_ENDS = {"ack": 12, "reject": 1, "requeue": 2, "release": 1}


def draw(seed: int, steps: int, store: str = "") -> Plan:
    """Return the plan of a seed."""
    dice = random.Random(f"plan {seed}")
    name = store or dice.choice(("folder", "bucket"))
    chosen: Literal["folder", "bucket"] = "folder" if name == "folder" else "bucket"
    fault_rate = dice.choice((0.0, 0.01, 0.03))
    drawn = []
    number = 0
    faults = _faults(chosen)
    for _ in range(steps):
        after = dice.expovariate(1 / 0.004)
        if dice.random() < fault_rate:
            drawn.append(_fault(dice, faults, after))
            continue
        kind = dice.random()
        if kind < 0.4:
            number += 1
            drawn.append(Step(after, dice.choice(PRODUCERS), "publish", _publish(dice, f"m{number}")))
        elif kind < 0.85:
            client = dice.choice(CONSUMERS)
            if dice.random() < 0.6:
                drawn.append(Step(after, client, "receive", {"seconds": round(dice.uniform(0, 0.05), 4)}))
            else:
                drawn.append(Step(after, client, "settle", {"place": dice.random(), "end": _end(dice)}))
        else:
            drawn.append(_read(dice, after))
    return Plan(seed, chosen, tuple(drawn))


def _publish(dice: random.Random, key: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"key": key, "queue": dice.choice(QUEUES), "size": dice.choice((10, 60, 400))}
    if dice.random() < 0.2:
        arguments["priority"] = dice.choice((1, 5, 9))
    if dice.random() < 0.15:
        arguments["delay"] = round(dice.uniform(0.01, 3.0), 3)
    if dice.random() < 0.1:
        arguments["ttl"] = round(dice.uniform(0.05, 2.0), 3)
    if dice.random() < 0.01:
        arguments["size"] = 20_000
    return arguments


def _end(dice: random.Random) -> str:
    return dice.choices(list(_ENDS), list(_ENDS.values()))[0]


def _read(dice: random.Random, after: float) -> Step:
    reader = dice.choice(READERS)
    queue = dice.choice(QUEUES)
    if dice.random() < 0.5:
        return Step(after, reader, "read", {"queue": queue, "qty": dice.choice((1, 1, 3))})
    return Step(after, reader, "end", {"place": dice.random(), "end": _end(dice)})


def _faults(store: str) -> dict[str, int]:
    """Return the faults that a store can have, with weights."""
    shared = {
        "kill": 6,
        "stop": 3,
        "partition": 3,
        "reset": 6,
        "slow_network": 2,
        "restart_client": 3,
        "set_clock": 2,
        "stop_client": 1,
        "fail_write": 1,
        "fail_answer": 1,
        "slow_store": 2,
        "silent_store": 1,
        "shut_down": 2,
    }
    if store == "folder":
        return shared | {"lose_power": 4, "tear_write": 3, "fill_disk": 2, "fail_sync": 1, "flip_bit": 1}
    return shared | {"fail_record_answer": 1, "fail_record_write": 1, "hand_over": 3}


def _fault(dice: random.Random, faults: dict[str, int], after: float) -> Step:
    name = dice.choices(list(faults), list(faults.values()))[0]
    return Step(
        after,
        "",
        name,
        {"choice": dice.random(), "seconds": round(dice.choice((0.05, 0.3, 1.0, 4.0)) * dice.uniform(0.2, 1.0), 3)},
    )
