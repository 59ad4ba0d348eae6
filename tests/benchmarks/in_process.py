"""Work measured without a running broker: routing by filters, permission checks, imports and the first connect."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from kombu_opendata.broker.access.file_format import Patterns
from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.cli.administration.users import celery_pattern
from kombu_opendata.protocol.messages import Publish
from kombu_opendata.storage.routing.topology import Topology

from . import clients
from .peers import our_broker
from .processes import BenchError, run_alone
from .results import Results
from .targets import OURS, RABBITMQ, REDIS
from .workloads import Sizes

Step = Callable[[str], None]
Headers = dict[str, str]


def microseconds(function: Callable[[Any], object], values: Sequence[Any], calls: int = 0) -> float:
    """Return the CPU time of a call, with these values in turn."""
    calls = calls or len(values)
    for value in values[:50]:
        function(value)
    start = time.process_time()
    for number in range(calls):
        function(values[number % len(values)])
    return (time.process_time() - start) / calls * 1e6


# ---------------------------------------------------------------------- filters
QUEUES, MATCHES, MESSAGES = 1_000, 3, 500
#: filters, in turn, and headers that they match; ``{n}`` is the queue's number
FILTERS = (
    ("task = 'app.tasks.job{n}'", "task=app.tasks.job{n}"),
    ("task LIKE 'mod{n}.%' AND priority >= 2", "task=mod{n}.run"),
    ("tenant = 't{n}' AND kind <> 'test'", "tenant=t{n}"),
    ("task IN ('billing.send{n}', 'billing.remind{n}') AND retries < 3", "task=billing.remind{n}"),
    ("topic(routing_key, 'region{n}.*.#') AND NOT lang = 'js'", "routing_key=region{n}.city.street"),
    ("exchange = 'celery' AND routing_key = 'key{n}'", "routing_key=key{n}"),
    ("customer = {n} AND (kind = 'order' OR kind = 'refund')", "customer={n}"),
    ("tenant = 't{n}' OR task = 'admin.job{n}'", "tenant=t{n}"),
    ("amount BETWEEN {n}0 AND {n}9 AND currency = 'EUR'", "amount={n}5"),
    ("task LIKE '%.report{n}' AND priority > 0", "task=x.report{n}"),
)
_HEADERS = {
    "lang": "py", "task": "app.other", "id": "3f1c9a52-0b57-4f0e-9f5d-6f1de4f27f05", "root_id": "3f1c9a52",
    "retries": "0", "parent_id": "0b57", "origin": "gen1@host", "exchange": "celery", "routing_key": "celery",
    "priority": "5", "content_type": "application/json", "kind": "order", "currency": "EUR", "amount": "0",
    "tenant": "none", "customer": "none",
}  # fmt: skip


def topology(queues: int, *, filters: bool) -> Topology:
    """Return a topology with queues that are bound to a direct exchange by their names."""
    made = Topology()
    for n in range(queues):
        made.add_queue(f"q{n}", {"x-filter": FILTERS[n % len(FILTERS)][0].format(n=n)} if filters else {})
        made.bind(f"q{n}", "amq.direct", f"q{n}", {})
    return made


def messages() -> list[Headers]:
    """Return headers that :data:`MATCHES` queues take: by a condition on each of task, tenant and customer."""
    dice, made = random.Random(1), []
    for _ in range(MESSAGES):
        kinds = dice.choice((0, 1, 3, 9)), dice.choice((2, 7)), dice.choice((6,))
        numbers = [kind + len(FILTERS) * dice.randrange(QUEUES // len(FILTERS)) for kind in kinds]
        pairs = [FILTERS[n % len(FILTERS)][1].format(n=n).split("=") for n in numbers]
        made.append(_HEADERS | dict(pairs))
    return made


def measure_filters(sizes: Sizes, results: Results, _folder: Path, _step: Step) -> None:
    given = messages()
    filtered, plain, few = topology(QUEUES, filters=True), topology(QUEUES, filters=False), topology(1, filters=False)
    if {len(filtered.route("", "unbound", dict, headers)) for headers in given} != {MATCHES}:
        raise BenchError("the filters and the messages do not fit together")
    for _ in range(sizes.rounds):
        results.add("filters.route", OURS, microseconds(lambda h: filtered.route("", "unbound", dict, h), given))
        results.add("filters.direct", OURS, microseconds(lambda h: plain.route("amq.direct", "q0", dict, h), given))
        results.add("filters.few", OURS, microseconds(lambda h: few.route("amq.direct", "q0", dict, h), given))


# ---------------------------------------------------------------------- permissions
CALLS, NEW_NAMES = 200_000, 20_000


def measure_permissions(sizes: Sizes, results: Results, _folder: Path, _step: Step) -> None:
    """Measure the check of publishes as Celery sends them, with the queue's name as the routing key."""

    def check(pattern: str, names: list[str], calls: int) -> float:
        rights = Rights("user", "default", Patterns(pattern, pattern, pattern))
        publish = Publish.operation.permission.check
        return microseconds(lambda p: publish(rights, p), [Publish(0, 1, "", n, b"", {}, 0, 1) for n in names], calls)

    names = [f"queue-{number}" for number in range(100)]
    new = [f"new-{number}" for number in range(NEW_NAMES)]
    for _ in range(sizes.rounds):
        results.add("permissions.publish", OURS, check(celery_pattern(tuple(names)), names, CALLS))
        results.add("permissions.all", OURS, check(".*", names, CALLS))
        results.add("permissions.new", OURS, check("^new-|^amq[.]results$", new, NEW_NAMES))


# ---------------------------------------------------------------------- import and connect
URLS = {OURS: "opendata:///nowhere", RABBITMQ: "amqp://", REDIS: "redis://"}
TRIES = 5
"""Processes a round starts for each number, because a difference of two noisy times is noisier."""

# Prints the milliseconds to import Kombu and, where a URL is given, the transport behind it. Our package hooks into
# Kombu's own import with an entry point; that cost is ours, so a process that doesn't measure us hides the hook.
_PROGRAM = """
import importlib, sys, time
from importlib import metadata
url = sys.argv[1]
ours = url.startswith("opendata")
found = metadata.entry_points
def others(**which):
    return [one for one in found(**which) if not one.value.startswith("kombu_opendata")]
if not ours:
    metadata.entry_points = others
start = time.perf_counter()
from kombu import Connection, Consumer, Exchange, Producer, Queue
if ours:
    importlib.import_module("kombu_opendata")
if url:
    Connection(url).get_transport_cls()
print((time.perf_counter() - start) * 1000)
"""


def measure_imports(chosen: tuple[str, ...], sizes: Sizes, results: Results, _folder: Path, step: Step) -> None:
    brokers = [name for name in chosen if name in URLS and (name != REDIS or find_spec("redis"))]
    for name in brokers:
        _import_milliseconds(URLS[name])  # compiles the modules
    for number in range(1, sizes.rounds + 1):
        kombu = _import_milliseconds("")
        results.add("import.kombu", OURS, kombu)
        for name in brokers:
            results.add("import.time", name, _import_milliseconds(URLS[name]) - kombu)
        step(f"import, round {number}")
    alone = results.median("import.kombu", OURS)
    results.remarks.append(f"Import of Kombu alone, without a transport: {alone or 0:.0f} ms.")


def _import_milliseconds(url: str) -> float:
    times = []
    for _ in range(TRIES):
        done = subprocess.run([sys.executable, "-c", _PROGRAM, url], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"import of the transport of {url or 'Kombu'} failed:\n{done.stderr[-1500:]}")
        times.append(float(done.stdout))
    return median(times)


def measure_connects(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure the first connect of a client to a folder that does not exist yet."""
    for number in range(1, sizes.rounds + 1):
        with our_broker(folder / f"cold-{number}") as peer:
            results.add("connect.time", OURS, run_alone(clients.first_connect, peer))
        step(f"first connect, round {number}")
