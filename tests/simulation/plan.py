"""Plans of runs: the steps of clients and faults, drawn from a seed before a run, so that it can run with fewer."""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

from ..histories.programs import KEYS, TENANTS, THROTTLED, WEIGHTED, WEIGHTS
from ..histories.queue_programs import BOX, GROUP_MESSAGES, LETTERS

SPLIT = "split"
#: queues with partitions and limits; that with weights is only read, so that many messages wait in it
LIMITED = (TENANTS, THROTTLED, SPLIT)
QUEUES = ("orders", "mail", "jobs", *LIMITED)
TASKS = "tasks"
#: a queue that is mostly read by groups
GROUPED = "grouped"
#: users: one who may do all, and one who may only use a queue; the secret of both
ROOT, TENANT, SECRET = "root", "eve", "x"
OWN = "eve-own"
#: the size of bodies and of results that are stored in payload segments
LARGE = 30_000
DEAD_LETTERS = "dead"
#: the exchange of Celery's remote control, and the queue of a worker
CONTROL, COMMANDS = "celery.pidbox", "commands"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "orders": {},
    "mail": {"x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD_LETTERS},
    "jobs": {"x-delivery-limit": 5},
    DEAD_LETTERS: {},
    TASKS: {"x-partition-by": "tenant", "x-partition-concurrency": 3, "x-concurrency": 6},
    TENANTS: {"x-partition-by": "tenant", "x-partition-concurrency": 1, "x-concurrency": 4},
    THROTTLED: {"x-partition-by": "tenant", "x-partition-rate": "15/m:1", "x-rate": "24/m:1"},
    SPLIT: {"x-partition-by": "tenant"},
    WEIGHTED: {"x-partition-by": "tenant", "x-partition-weights": WEIGHTS},
    GROUPED: {"x-partition-by": "tenant"},
    OWN: {},
}

Store = Literal["folder", "bucket", "slatedb"]


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
        store: one broker with a folder, or two with a bucket; "slatedb" is a folder with the real SlateDB, whose runs
            can't be repeated exactly.
    """

    seed: int
    store: Store
    steps: tuple[Step, ...]

    @property
    def brokers(self) -> tuple[str, ...]:
        return ("a", "b") if self.store == "bucket" else ("a",)


#: the clients of each kind
CLIENTS = (
    "producer0",
    "producer1",
    "consumer0",
    "consumer1",
    "consumer2",
    "reader0",
    "reader1",
    "worker0",
    "worker1",
    "operator0",
    "driver0",
    "backend0",
    "tenant0",
)

#: what happens to a delivery, with weights
_ENDS = {"ack": 12, "reject": 1, "requeue": 2, "release": 1}


def draw(seed: int, steps: int, store: Store | None = None) -> Plan:
    """Return the plan of a seed."""
    dice = random.Random(f"plan {seed}")
    drawn_store: Store = dice.choice(("folder", "bucket"))
    chosen = store or drawn_store
    fault_rate = dice.choice((0.0, 0.003, 0.003, 0.01, 0.01, 0.03))
    drawn = []
    faults = _faults(chosen)
    for number in range(steps):
        after = round(dice.expovariate(1 / 0.004), 6)
        if dice.random() < fault_rate:
            drawn.append(_fault(dice, faults, after))
        else:
            actor, action, arguments = _operation(dice, number)
            drawn.append(Step(after, actor, action, arguments))
    if begins_older(seed):
        for place in (dice.randrange(steps), dice.randrange(steps)):
            drawn[place] = _fault(dice, {"upgrade": 1}, drawn[place].after)
    return Plan(seed, chosen, tuple(drawn))


def begins_older(seed: int) -> bool:
    """Return True if the brokers of a run are of an older version at its begin; each is upgraded at some time."""
    return random.Random(f"{seed} version").random() < 0.3


def _client(dice: random.Random, kind: str) -> str:
    return dice.choice([client for client in CLIENTS if client.startswith(kind)])


def _operation(dice: random.Random, number: int) -> tuple[str, str, dict[str, Any]]:
    """Return a client, its operation, and the arguments."""
    place, seed, kind = dice.random(), dice.randrange(1 << 30), dice.random()
    if kind < 0.32:
        publisher = dice.choice(("producer", "producer", "consumer", "worker"))
        return _client(dice, publisher), "publish", _publish(dice, f"m{number}")
    if kind < 0.62:
        client = _client(dice, "consumer")
        if dice.random() < 0.6:
            end = _end(dice) if dice.random() < 0.2 else ""
            return client, "receive", {"seconds": round(dice.uniform(0, 0.05), 4), "end": end}
        if dice.random() < 0.1:
            return client, "settle_foreign", {"place": place, "of_other": dice.random() < 0.5}
        return client, "settle", {"place": place, "end": _end(dice)}
    if kind < 0.78:
        return _of_reader(dice, number, place, seed)
    if kind < 0.90:
        return _of_worker(dice, place)
    if kind < 0.93:
        return "operator0", *_of_operator(dice, place, seed)
    if kind < 0.952:
        task = f"task{dice.randrange(1 + number // 40)}"
        size = LARGE if dice.random() < 0.1 else 0
        stored = "store_result", {"task": task, "result": f"SUCCESS {number}", "size": size}
        return "backend0", *dice.choice((stored, ("get_result", {"task": task})))
    if kind < 0.955:
        return "backend0", "revoke", {"place": place}
    if kind < 0.962:
        return (
            "backend0",
            "start_chord",
            {"chord": f"chord{number}", "parts": dice.choice((2, 3)), "again": dice.random() < 0.5},
        )
    if kind < 0.99:
        return "tenant0", *_of_tenant(dice, number, place, seed)
    rows = tuple(dice.choice((1, 3, 20)) for _ in range(dice.choice((1, 2))))
    return (
        "driver0",
        "run_job",
        {"job": f"job{number}", "rows": rows, "commits": dice.choice((0, 1, 1, 2)), "seed": seed},
    )


def _of_operator(dice: random.Random, place: float, seed: int) -> tuple[str, dict[str, Any]]:
    kind = dice.random()
    if kind < 0.4:
        return "steer", {"seed": seed}
    if kind < 0.6:
        return "limit", {"slots": dice.choice((1, 2, 3))}
    if kind < 0.65:
        return "split", {"by": dice.choice((None, "shard", "tenant"))}
    if kind < 0.7:
        return "weigh", {"weights": dice.choice((WEIGHTS, {"gold": 1, "silver": 3, "*": 2}))}
    if kind < 0.75:
        return "measure_box", {}
    if kind < 0.85:
        queue, key, seconds = dice.choice((TENANTS, THROTTLED)), dice.choice(KEYS), dice.choice((0, 1, 2))
        return "delay", {"queue": queue, "key": key, "seconds": seconds}
    return "look", {"place": place}


def _of_tenant(dice: random.Random, number: int, place: float, seed: int) -> tuple[str, dict[str, Any]]:
    kind = dice.random()
    if kind < 0.2:
        return "send", {"key": f"e{number}", "size": dice.choice((10, 400))}
    if kind < 0.4:
        return "read", {"queue": OWN, "qty": dice.choice((1, 3)), "lease_seconds": 20.0}
    if kind < 0.5:
        return "end", {"place": place, "seed": seed}
    if kind < 0.55:
        return "take_session", {"place": place}
    return ("list_all", {}) if kind < 0.65 else ("trespass", {"place": place})


def _of_reader(dice: random.Random, number: int, place: float, seed: int) -> tuple[str, str, dict[str, Any]]:
    reader, kind = _client(dice, "reader"), dice.random()
    if kind < 0.03:
        return reader, "query", {"count": dice.randrange(1, 13), "seed": seed}
    if kind < 0.3:
        return reader, "write", {"key": f"l{number}", "seed": seed}
    if kind < 0.7:
        lease_seconds = dice.choice((20.0, 20.0, round(dice.uniform(0.05, 2.0), 3)))
        if dice.random() < 0.4:
            return reader, "read_grouped", _grouped(dice, lease_seconds)
        queue = dice.choice((*QUEUES, LETTERS, LETTERS, WEIGHTED, GROUPED, BOX))
        lease_seconds = 600.0 if queue == BOX else lease_seconds  # a return would exceed its limit
        return reader, "read", {"queue": queue, "qty": dice.choice((1, 1, 3)), "lease_seconds": lease_seconds}
    return reader, "end", {"place": place, "seed": seed}


def _grouped(dice: random.Random, lease_seconds: float) -> dict[str, Any]:
    return {
        "queue": dice.choice((GROUPED, GROUPED, GROUPED, WEIGHTED, *LIMITED)),
        "qty": dice.choice((1, 3, GROUP_MESSAGES)),
        "lease_seconds": lease_seconds,
        "order": dice.choice(("fill", "round_robin", "head")),
        "wait_seconds": dice.choice((0.0, 0.0, 0.3)),
    }


def _of_worker(dice: random.Random, place: float) -> tuple[str, str, dict[str, Any]]:
    worker, kind = _client(dice, "worker"), dice.random()
    if kind < 0.5:
        return worker, "receive", {"seconds": round(dice.uniform(0, 0.05), 4)}
    if kind < 0.52:
        return worker, "leave", {}
    if kind < 0.7:
        return worker, "begin_task", {"place": place}
    return worker, "end_task", {"place": place, "end": dice.choice(("succeeded", "succeeded", "raised"))}


def _publish(dice: random.Random, key: str) -> dict[str, Any]:
    queue = dice.choice((*QUEUES, TASKS, WEIGHTED, WEIGHTED, GROUPED, GROUPED, BOX))
    arguments: dict[str, Any] = {"key": key, "queue": queue, "size": dice.choice((10, 60, 400))}
    if queue in (TASKS, WEIGHTED, GROUPED, *LIMITED):
        arguments["tenant"] = dice.choice(KEYS)
        if dice.random() < 0.4:
            arguments["unique"] = f"{queue} {dice.randrange(12 if queue == WEIGHTED else 3)}"
            arguments["until"] = dice.choice((-1.0, -1.0, 0.0, 0.5))
            arguments["on_conflict"] = dice.choice(("return", "replace", "error"))
    if queue == WEIGHTED:
        return arguments
    if dice.random() < 0.2:
        arguments["priority"] = dice.choice((1, 5, 9))
    if dice.random() < 0.15:
        arguments["delay"] = round(dice.uniform(0.01, 3.0), 3)
    if dice.random() < 0.1:
        arguments["ttl"] = round(dice.uniform(0.05, 2.0), 3)
    if dice.random() < 0.03:
        arguments["size"] = dice.choice((20_000, LARGE, 2 * LARGE))
    return arguments


def _end(dice: random.Random) -> str:
    return dice.choices(list(_ENDS), list(_ENDS.values()))[0]


#: faults that concern no store
_OF_PROCESSES = (
    "kill", "stop", "partition", "reset", "repeat_request", "slow_network", "restart_client", "set_clock",
    "stop_client", "shut_down",
)  # fmt: skip


def _faults(store: Store) -> dict[str, int]:
    """Return the faults that a store can have, with weights."""
    shared = {
        "kill": 6,
        "stop": 3,
        "partition": 3,
        "reset": 6,
        "repeat_request": 3,
        "slow_network": 2,
        "restart_client": 3,
        "set_clock": 2,
        "stop_client": 1,
        "fail_write": 1,
        "fail_answer": 1,
        "slow_store": 2,
        "silent_store": 1,
        "flip_row_bit": 1,
        "shut_down": 2,
    }
    if store == "slatedb":
        return {name: shared[name] for name in _OF_PROCESSES}
    if store == "folder":
        return shared | {
            "lose_power": 4,
            "tear_write": 3,
            "fill_disk": 2,
            "fail_sync": 1,
            "fail_store_sync": 1,
            "flip_journal_bit": 2,
            "flip_segment_bit": 2,
        }
    return shared | {
        "fail_record_answer": 1,
        "fail_record_write": 1,
        "fail_record_read": 1,
        "hand_over": 3,
        "isolate_broker": 3,
        "slow_store_of_broker": 2,
    }


def _fault(dice: random.Random, faults: dict[str, int], after: float) -> Step:
    name = dice.choices(list(faults), list(faults.values()))[0]
    return Step(
        after,
        "",
        name,
        {"choice": dice.random(), "seconds": round(dice.choice((0.05, 0.3, 1.0, 4.0)) * dice.uniform(0.2, 1.0), 3)},
    )
