"""peer_calls.md, which the site has: every operation of the peers has its row, and each row's call is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.queue_client import QueueOptions

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "client-api.md").read_text()
CALLS = Path(__file__).with_name("peer_calls.md").read_text()

PGMQ = """
create create_non_partitioned create_unlogged create_partitioned drop_queue list_queues send send_batch send_topic
send_batch_topic bind_topic unbind_topic list_topic_bindings test_routing validate_routing_key validate_topic_pattern
read read_with_poll read_grouped read_grouped_rr read_grouped_head pop set_vt delete archive purge_queue metrics
metrics_all enable_notify_insert
""".split()  # noqa: SIM905
PGQRS = """
enqueue enqueue_delayed enqueue_at batch_enqueue batch_enqueue_delayed batch_enqueue_at replay_dlq get_message_by_id
rate_limit_status dequeue dequeue_many dequeue_delay dequeue_many_with_delay dequeue_at extend_vt archive archive_many
delete delete_many release_messages release_with_visibility poll interrupt status suspend resume shutdown heartbeat
is_healthy install verify create_queue get_queue delete_queue purge_queue dlq archive_dlq queue_metrics
all_queues_metrics system_stats worker_stats worker_health_stats list_workers get_worker delete_worker
get_worker_messages release_worker_messages reclaim_messages purge_old_workers queue-messages archive-list
archive-count archive-delete produce produce_batch consume consume_batch consume_iter
""".split()  # noqa: SIM905
OUTPOST = ["ListEvent", "ListAttempt", "Next`, `Prev", "RetrieveEvent", "RetrieveAttempt", "InsertMany"]
OUTPOST += ["event metrics", "attempt metrics"]
LOG_STORE = "Outpost's log store"


def rows(peer: str) -> dict[str, str]:
    """Operation → our call."""
    text = f"\n{CALLS}".split(f"\n## {peer}\n")[1].split("\n## ")[0]
    if peer == LOG_STORE:
        cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
        return {cell[0].strip("`"): cell[1].strip("`") for cell in cells}
    found = re.findall(r"(?m)^\| `([^`]+)` \| (?:`(.+?)`)? ?\|", text)
    assert len(found) == len({name for name, _call in found}) == len(re.findall(r"(?m)^\| `", text))
    return {name.replace(" ", "-"): call for name, call in found}


def test_every_operation_has_its_row() -> None:
    assert sorted(rows("pgmq")) == sorted(PGMQ)
    assert sorted(rows("pgqrs")) == sorted(PGQRS)
    assert list(rows(LOG_STORE)) == OUTPOST
    assert [name for peer in ("pgmq", "pgqrs") for name, call in rows(peer).items() if not call] == []


@pytest.fixture(scope="module")
def client(module_store_folder: Path) -> Iterator[QueueClient]:
    with QueueClient(f"opendata://{module_store_folder}", name="table") as opened:
        yield opened


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=f"{peer}-{name}")
        for peer in ("pgmq", "pgqrs", LOG_STORE)
        for name, call in rows(peer).items()
        if call
    ],
)
def test_each_call_works(client: QueueClient, name: str, call: str) -> None:
    client.create(name, QueueOptions(partition_by="h"))
    client.send(name, "to fail")
    (rejected,) = client.read(name)
    client.reject(name, rejected)
    ids = client.send_batch(name, range(5), {"h": "x"})
    (message,) = client.read(name)
    now = datetime.now(UTC)
    scope = {
        "client": client, "q": name, "new": f"{name}-new", "ids": ids, "message": message, "failed": rejected.id,
        "now": now, "moment": now + timedelta(minutes=5),
        "hour": timedelta(hours=1), "QueueOptions": QueueOptions,
        "worker": next(worker.id for worker in client.workers() if worker.connected),
    }  # fmt: skip
    result: Any = eval(call, scope)  # the page is ours
    assert not isinstance(result, GeneratorType)
    if "suspend" in call:
        client.resume_worker(scope["worker"])  # type: ignore[arg-type]


def test_the_tour(store_folder: Path) -> None:
    tour = re.findall(r"(?s)```python\n(.*?)```", PAGE)[0]
    assert "{Path.home()}/odq-tour" in tour
    exec(tour.replace("{Path.home()}/odq-tour", str(store_folder)), {})  # the page is ours
