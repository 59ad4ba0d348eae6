"""What a seed stands for: a store, brokers, clients, and the faults that strike them in turn."""

from __future__ import annotations

import random

from .events import Plain, Rules
from .programs import ALL_SLOTS, BURST, PARTITION_RATE, RATE, TENANT_SLOTS, TENANTS, THROTTLED, WEIGHTED
from .queue_programs import BOX, GRAVEYARD, LETTER_ATTEMPTS, LETTERS, ROWS, SECRET
from .task_programs import QUEUE as TASKS

#: how long a session waits for its client, where a client that is slow must not lose what it holds
LONG_GRACE_SECONDS = 600.0
SHORT_GRACE_SECONDS = 0.3
ORDERS = "orders"
RULES = {
    ORDERS: Rules(max_attempts=20),
    LETTERS: Rules(max_attempts=LETTER_ATTEMPTS, dead_letters=GRAVEYARD),
    BOX: Rules(),
    TENANTS: Rules(
        max_attempts=20,
        is_ordered=False,
        concurrency=ALL_SLOTS,
        partition_concurrency=TENANT_SLOTS,
    ),
    THROTTLED: Rules(
        max_attempts=20,
        is_ordered=False,
        rate=RATE,
        partition_rate=PARTITION_RATE,
        burst=BURST,
    ),
    WEIGHTED: Rules(max_attempts=20, is_ordered=False),
    GRAVEYARD: Rules(),
    ROWS: Rules(),
    SECRET: Rules(),
    TASKS: Rules(),
}
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
BROKER_FAULTS = (
    "kill a broker", "kill a broker", "kill a broker twice", "stop a broker", "end a broker", "disk fault",
    "disk fault", "set the clock",
)  # fmt: skip
NETWORK_FAULTS = ("cut the network", "hold the network")
CLIENT_FAULTS = ("kill a client", "stop a client")
LINK_FAULTS = ("cut a link", "drop packets", "delay packets")
BUCKET_FAULTS = ("fail the bucket", "hold the bucket")


#: hosts of clients, where a run has hosts
CLIENT_HOSTS = ("clients0", "clients1")


class Client(Plain):
    """A program of a client, its name, and its further arguments."""

    program: str
    name: str
    arguments: tuple[str, ...] = ()


class Scenario(Plain):
    """One run, drawn from a seed.

    Attributes:
        is_bucket: whether the store is in a bucket, or else in a folder.
        has_standby: whether a second broker waits.
        has_users: whether clients log in.
        has_network: whether clients connect by proxies.
        has_hosts: whether brokers and clients are on hosts of their own, where the machine can have such.
        is_damaged: whether bytes of the store are changed at the end.
        grace_seconds: how long a session waits for its client.
        clients: those that are there from the beginning.
        faults: their names in order, see :mod:`.strikes`.
    """

    seed: int
    is_bucket: bool
    has_standby: bool
    has_users: bool
    has_network: bool
    has_hosts: bool
    is_damaged: bool
    grace_seconds: float
    clients: tuple[Client, ...]
    faults: tuple[str, ...]


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    dice = random.Random(f"scenario {seed}")
    is_bucket, has_network, has_users = (dice.random() < chance for chance in (0.1, 0.3, 0.25))
    short = not is_bucket and dice.random() < 0.15
    faults = [*BROKER_FAULTS, *CLIENT_FAULTS]
    faults += NETWORK_FAULTS * has_network + BUCKET_FAULTS * 2 * is_bucket
    if is_bucket:
        faults = [fault for fault in faults if fault != "disk fault"]
    if has_hosts := not (is_bucket or has_network or short) and random.Random(f"hosts {seed}").random() < 0.3:
        faults += LINK_FAULTS * 3
    if short:  # where a session ends soon, a broker's end would end all of them
        faults = [*CLIENT_FAULTS]
    return Scenario(
        seed=seed,
        is_bucket=is_bucket,
        has_standby=not short and dice.random() < 0.25,
        has_users=has_users,
        has_network=has_network and not short,
        has_hosts=has_hosts,
        is_damaged=not is_bucket and dice.random() < 0.15,
        grace_seconds=SHORT_GRACE_SECONDS if short else LONG_GRACE_SECONDS,
        clients=_clients(dice, has_users),
        faults=tuple(dice.choice(faults) for _ in range(dice.randrange(4, 8))),
    )


def host_names(scenario: Scenario) -> tuple[str, ...]:
    """Return the hosts of a run: one of each broker, and two of clients."""
    return (*(f"broker{number}" for number in range(1 + scenario.has_standby)), *CLIENT_HOSTS)


def _clients(dice: random.Random, has_users: bool) -> tuple[Client, ...]:
    groups: dict[str, list[tuple[str, ...]]] = {
        "kombu": [("produce", ORDERS), ("consume", ORDERS), ("consume", ORDERS)],
        "letters": [("write_letters",), ("read_letters",), ("read_letters",)],
        "tenants": [("produce", TENANTS), ("produce", TENANTS), ("consume", TENANTS), ("consume", TENANTS)],
        "rates": [("produce", THROTTLED), ("consume", THROTTLED), ("consume", THROTTLED)],
        "weights": [("produce", WEIGHTED), ("read_letters", WEIGHTED), ("read_letters", WEIGHTED), ("weigh",)],
        "box": [("fill_box",), ("read_letters", BOX)],
        "tasks": [("send_tasks",), ("work", dice.choice(POOLS))],
        "jobs": [("drive_jobs",)],
        "steering": [("steer",)],
    }
    weights = {"kombu": 2, "letters": 2, "box": 2, "tenants": 3, "tasks": 2, "jobs": 2, "steering": 2}
    weights |= {"rates": 2, "weights": 2}
    chosen = {dice.choice(("kombu", "letters")), *dice.choices(list(weights), list(weights.values()), k=2)}
    programs = [program for group in groups if group in chosen for program in groups[group]]
    if has_users:
        programs.append(("trespass",))
    return tuple(
        Client(program=program, name=f"{program}{number}", arguments=tuple(arguments))
        for number, (program, *arguments) in enumerate(programs)
    )
