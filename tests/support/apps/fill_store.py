"""Fills a store with all that clients can put into it, and kills its broker: the store of a version, for later ones.

Run it with a version's own checkout, from any folder, and pack it without its ``broker.*`` and ``*.sync``::

    PYTHONPATH=/checkout/of/that/version python tests/support/apps/fill_store.py /tmp/store
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from celery import Celery

from kombu_opendata import QueueClient
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.envelope import encode_fields
from kombu_opendata.queue_client import QueueOptions
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import StagingTarget
from tests.support.processes import wait_until

STAGED = 300
PATIENCE_SECONDS = 120


def envelope(body: bytes) -> bytes:
    return encode_fields((body, "application/data", "binary", {}, {}, "", "staged"))


def main(folder: Path) -> None:
    url = f"opendata://{folder}"
    with QueueClient(url) as client, StagingClient(url) as staging:
        _define(client)
        _settle(client)
        _wait(client)
        target = staging.staging_target()
        target = StagingTarget(target.url, target.instance, target.options, target.max_message_bytes, 0, 0)
        writer = BatchWriter(target, "job", 0, 0)
        for number in range(STAGED):
            writer.add(envelope(b"staged %d" % number), {"exchange": "", "routing_key": "staged"}, routing_key="staged")
        staging.commit_job("job", [writer.close()])
        wait_until(lambda: staging.job_status("job").routed >= STAGED, PATIENCE_SECONDS, "the routing of the job")
        app = Celery(broker=url, backend=url, set_as_current=False)
        app.conf.result_expires = None
        for number in range(3):
            app.backend.store_result(f"task-{number}", {"number": number}, "SUCCESS")
        tables = set(folder.rglob("*.sst"))
        # After a tidy of the broker, what follows is in the journal only, or in the WAL.
        wait_until(lambda: set(folder.rglob("compacted/*.sst")) - tables, PATIENCE_SECONDS, "a tidy of the broker")
        client.send("plain", b"last")
        os.kill(int((folder / "broker.pid").read_text()), signal.SIGKILL)


def _define(client: QueueClient) -> None:
    for_ever = QueueOptions(done_retention_seconds=0, failed_retention_seconds=0)
    client.declare_exchange("letters", "fanout")
    client.declare_exchange("topics", "topic")
    client.declare_exchange("headers", "headers")
    for queue in ("plain", "delayed", "held", "staged", "dead", "by-topic", "by-header"):
        client.create(queue, for_ever)
    client.create("settled", replace(for_ever, max_attempts=1, dead_letter_exchange="letters"))
    client.create("large-amounts", replace(for_ever, filter="amount > 100"))
    client.bind("dead", "letters")
    client.bind("by-topic", "topics", "orders.#")
    client.bind("by-header", "headers", "", {"x-match": "all", "kind": "a"})


def _settle(client: QueueClient) -> None:
    client.send_batch("settled", [b"settled %d" % number for number in range(12)])
    messages = client.read("settled", vt=60, qty=12)
    client.archive_many("settled", messages[:4])
    client.delete_many("settled", messages[4:6])
    client.reject_many("settled", messages[6:])
    client.archive_failed("settled", ids=[messages[-1].id])


def _wait(client: QueueClient) -> None:
    for number in range(20):
        client.send("plain", b"plain %d" % number, {"amount": 10 * number}, priority=number % 3)
    client.send("plain", b"large " + bytes(200_000))
    client.send("plain", b"once", idempotency_key="key", key_seconds=30 * 86_400)
    client.send("delayed", b"delayed", delay=15)
    client.publish(b"by topic", exchange="topics", routing_key="orders.new.one")
    client.publish(b"by header", {"kind": "a"}, exchange="headers")
    client.send_batch("held", [b"held %d" % number for number in range(5)])
    client.read("held", vt=15, qty=3)
    again = client.read("held", vt=15, qty=1)
    client.release_many("held", again)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
