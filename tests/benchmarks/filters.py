"""Routing one message among 1,000 filter queues, in this process: CPU time alone, without a broker around it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median

from kombu_opendata.storage.routing.topology import Topology

from .results import Results
from .targets import OURS
from .workloads import Sizes

QUEUES = 1_000
MATCHES = 3
MESSAGES = 500

#: ordinary filters, by turns; ``{n}`` is the queue's number
FILTERS = (
    "task = 'app.tasks.job{n}'",
    "task LIKE 'mod{n}.%' AND priority >= 2",
    "tenant = 't{n}' AND kind <> 'test'",
    "task IN ('billing.send{n}', 'billing.remind{n}') AND retries < 3",
    "topic(routing_key, 'region{n}.*.#') AND NOT lang = 'js'",
    "exchange = 'celery' AND routing_key = 'key{n}'",
    "customer = {n} AND (kind = 'order' OR kind = 'refund')",
    "tenant = 't{n}' OR task = 'admin.job{n}'",
    "amount BETWEEN {n}0 AND {n}9 AND currency = 'EUR'",
    "task LIKE '%.report{n}' AND priority > 0",
)

Headers = dict[str, str]


def message(numbers: list[int]) -> Headers:
    """What a Celery task's headers are, so that the filters of these queues are true of it."""
    headers = {
        "lang": "py", "task": "app.other", "id": "3f1c9a52-0b57-4f0e-9f5d-6f1de4f27f05", "root_id": "3f1c9a52",
        "retries": "0", "parent_id": "0b57", "origin": "gen1@host", "exchange": "celery", "routing_key": "celery",
        "priority": "5", "content_type": "application/json", "kind": "order", "currency": "EUR", "amount": "0",
        "tenant": "none", "customer": "none",
    }  # fmt: skip
    sets: tuple[Callable[[int], Headers], ...] = (
        lambda n: {"task": f"app.tasks.job{n}"},
        lambda n: {"task": f"mod{n}.run"},
        lambda n: {"tenant": f"t{n}"},
        lambda n: {"task": f"billing.remind{n}"},
        lambda n: {"routing_key": f"region{n}.city.street"},
        lambda n: {"routing_key": f"key{n}"},
        lambda n: {"customer": str(n)},
        lambda n: {"tenant": f"t{n}"},
        lambda n: {"amount": f"{n}5"},
        lambda n: {"task": f"x.report{n}"},
    )
    for n in numbers:
        headers |= sets[n % len(sets)](n)
    return headers


def topology(queues: int, *, filters: bool) -> Topology:
    """A topology with this many queues, each bound to a direct exchange by its name."""
    made = Topology()
    for n in range(queues):
        made.add_queue(f"q{n}", {"x-filter": FILTERS[n % len(FILTERS)].format(n=n)} if filters else {})
        made.bind(f"q{n}", "amq.direct", f"q{n}", {})
    return made


def messages() -> list[Headers]:
    """Messages of which each is taken by :data:`MATCHES` queues: one condition each on task, tenant and customer."""
    dice = random.Random(1)
    by_task, by_tenant, by_customer = (0, 1, 3, 9), (2, 7), (6,)
    made = []
    for _ in range(MESSAGES):
        kinds = dice.choice(by_task), dice.choice(by_tenant), dice.choice(by_customer)
        made.append(message([kind + len(FILTERS) * dice.randrange(QUEUES // len(FILTERS)) for kind in kinds]))
    return made


def microseconds(route: Callable[[Headers], object], given: list[Headers]) -> float:
    """CPU time for each message."""
    for headers in given[:50]:
        route(headers)
    start = time.process_time()
    for headers in given:
        route(headers)
    return (time.process_time() - start) / len(given) * 1e6


def measure(sizes: Sizes, results: Results) -> None:
    """Adds one sample of each row per round, and what evaluating every filter takes."""
    given = messages()
    filtered, plain, few = topology(QUEUES, filters=True), topology(QUEUES, filters=False), topology(1, filters=False)
    taken = [len(filtered.route("", "nobody", dict, headers)) for headers in given]
    assert set(taken) == {MATCHES}, "the filters and the messages above don't fit together"
    selectors = [found.selector for n in range(QUEUES) if (found := filtered.filters.get(f"q{n}"))]
    each = []
    for _ in range(sizes.rounds):
        results.add("filters.route", OURS, microseconds(lambda h: filtered.route("", "nobody", dict, h), given))
        results.add("filters.direct", OURS, microseconds(lambda h: plain.route("amq.direct", "q0", dict, h), given))
        results.add("filters.few", OURS, microseconds(lambda h: few.route("amq.direct", "q0", dict, h), given))
        each.append(microseconds(lambda h: [s for s in selectors if s.matches(h)], given[:100]))
    results.remarks.append(
        f"Evaluating {QUEUES} filters one by one, without an index: {median(each):.0f} µs of CPU per message, "
        f"{median(each) / QUEUES * 1000:.0f} ns a filter."
    )
