"""What a scrape says is what happened: a real broker, real clients, real scrapes."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from amqp.exceptions import NotFound

from kombu_opendata import QueueClient
from kombu_opendata.broker.metrics.metric_catalogue import ALL, PREFIX
from kombu_opendata.client.maintain import maintain
from kombu_opendata.protocol.messages import CloseChord, OpenChord, StoreResult
from kombu_opendata.queue_client import QueueOptions
from kombu_opendata.storage.state.partitions import bounded_key

from ...support.batches import commit_job
from ...support.kombu_client import connected, declare, send, take_bodies
from ...support.raw import RawClient
from ...support.scrape import Scrape, scrape, scrape_until
from ...support.served import ServedBroker
from .conftest import Serve

TRANSIENT = "(transient)"


def port_of(served: ServedBroker) -> int:
    return int(served.report["metrics_port"])


def test_a_queues_messages_are_counted_by_what_becomes_of_them(served: ServedBroker, channel: Any) -> None:
    declare(channel, "q")
    send(channel, "q", *"abcdefg")
    send(channel, "q", "later", headers={"task": "t", "eta": "2999-01-01T00:00:00+00:00"})
    first, second, third, fourth = (channel.basic_get("q") for _ in range(4))
    first.ack()
    second.reject()
    third.requeue()
    found = scrape_until(port_of(served), lambda s: s.of("q").get("messages_requeued_total"))
    figures = found.of("q")
    oldest, newest = (figures.pop(f"{which}_ready_message_age_seconds", 0) for which in ("oldest", "newest"))
    assert oldest >= newest >= 0  # a zero is left out
    assert figures == {
        "messages_ready": 4, "messages_delayed": 1, "messages_in_flight": 1, "messages_published_total": 8,
        "messages_delivered_total": 4, "messages_acked_total": 1, "messages_rejected_total": 1,
        "messages_requeued_total": 1,
    }  # fmt: skip
    assert found.value("opendata_queue_leases") == 1
    fourth.ack()
    again = scrape_until(port_of(served), lambda s: s.of("q").get("messages_acked_total") == 2)
    assert "messages_in_flight" not in again.of("q")


def test_a_paused_queue_is_seen(served: ServedBroker, channel: Any) -> None:
    declare(channel, "q")
    with QueueClient(f"opendata://127.0.0.1:{served.port}") as client:
        client.pause("q", publishes=True)
        scrape_until(port_of(served), lambda s: s.of("q") == {"paused": 1, "publishes_paused": 1})
        client.resume("q", publishes_only=True)
        scrape_until(port_of(served), lambda s: s.of("q") == {"paused": 1})
        client.resume("q")
        scrape_until(port_of(served), lambda s: s.of("q") == {})


def test_ages_are_of_what_is_ready(served: ServedBroker, channel: Any) -> None:
    declare(channel, "q")
    began = time.time()
    send(channel, "q", "old")
    figures = scrape_until(port_of(served), lambda s: s.of("q").get("oldest_ready_message_age_seconds", 0) > 1.2).of(
        "q"
    )
    assert 1.2 < figures["oldest_ready_message_age_seconds"] < time.time() - began + 1
    send(channel, "q", "new")
    found = scrape_until(port_of(served), lambda s: s.of("q").get("messages_ready") == 2).of("q")
    assert found.get("newest_ready_message_age_seconds", 0) < found["oldest_ready_message_age_seconds"]
    take_bodies(channel, "q")
    scrape_until(port_of(served), lambda s: "oldest_ready_message_age_seconds" not in s.of("q"))


def test_lost_clients_redeliveries_and_dead_letters(served: ServedBroker, channel: Any, store_folder: Path) -> None:
    declare(channel, "dead")
    to = {"x-dead-letter-exchange": ""}
    declare(channel, "q", arguments={**to, "x-dead-letter-routing-key": "dead"})
    declare(channel, "nowhere", arguments={**to, "x-dead-letter-routing-key": "none"})
    send(channel, "q", "x")
    with RawClient(f"{store_folder}/by-hand.sock") as lost:
        lost.hello()
        lost.consume("q")
        lost.wait_deliveries(1)
    figures = scrape_until(port_of(served), lambda s: s.of("q").get("leases_expired_total")).of("q")
    assert (figures["messages_ready"], figures["messages_delivered_total"]) == (1, 1)
    channel.basic_get("q").reject()
    send(channel, "nowhere", "y")
    channel.basic_get("nowhere").reject()

    def outcomes(found: Scrape) -> list[float]:
        name = "opendata_queue_dead_letters_total"
        return [found.value(name, outcome=outcome) for outcome in ("published", "unroutable", "cycle", "lost")]

    found = scrape_until(port_of(served), lambda s: outcomes(s) == [1, 1, 0, 0])
    figures = found.of("q")
    assert (figures["messages_redelivered_total"], figures["messages_dead_lettered_total"]) == (1, 1)
    assert found.of("dead")["messages_published_total"] == 1
    assert found.value("opendata_queue_dead_letters_waiting") == 0
    assert "1 leases ended because their clients did not come back" in served.log.read_text()


def test_expired_dropped_and_purged_messages(served: ServedBroker, channel: Any) -> None:
    declare(channel, "q", arguments={"x-max-length": 2})
    send(channel, "q", *"abc")
    channel.queue_purge("q")
    send(channel, "q", "d", expiration="1")
    figures = scrape_until(port_of(served), lambda s: s.of("q").get("messages_expired_total")).of("q")
    names = ("messages_dropped_total", "messages_purged_total", "messages_expired_total", "messages_published_total")
    assert [figures[name] for name in names] == [1, 2, 1, 4]


def test_transient_queues_are_one_series_that_never_goes_down(served: ServedBroker, channel: Any) -> None:
    scrape(port_of(served))
    for number in range(3):
        name = f"reply-{number}"
        declare(channel, name, durable=False, auto_delete=False)
        send(channel, name, "x", "y")
        assert take_bodies(channel, name) == ["x", "y"]
    found = scrape_until(port_of(served), lambda s: s.of(TRANSIENT).get("messages_acked_total") == 6)
    assert not found.of("reply-1")
    assert found.value("opendata_queue_queues", kind="transient") == 3
    for number in range(3):
        channel.queue_delete(f"reply-{number}")
    found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_queues", kind="transient") == 0)
    assert found.of(TRANSIENT) == {
        "messages_published_total": 6, "messages_delivered_total": 6, "messages_acked_total": 6,
    }  # fmt: skip


def test_queues_past_the_limit_are_summed(serve: Serve) -> None:
    served = serve("--metrics-max-queues", "2")
    with connected(f"opendata://127.0.0.1:{served.port}") as connection:
        channel = connection.channel()
        for name in ("first", "(other)", "second"):
            declare(channel, name)
        found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_queues", kind="stored") == 3)
        assert found.value("opendata_queue_messages_ready", queue="second") == 0
        for number in range(4):
            declare(channel, f"late-{number}")
            send(channel, f"late-{number}", "x")
        send(channel, "(other)", "named so")
        assert len(take_bodies(channel, "late-0")) == 1
        found = scrape_until(port_of(served), lambda s: s.of("(other)").get("messages_acked_total"))
        others = {"messages_ready": 4, "messages_published_total": 5, "messages_delivered_total": 1}
        assert found.of("(other)").items() >= others.items()
        queues = {sample.labels["queue"] for sample in found.samples if "queue" in sample.labels}
        assert queues == {"first", "second", "(other)", TRANSIENT}
        for name in ("late-0", "late-1", "first"):
            channel.queue_delete(name)
        found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_queues", kind="stored") == 4)
        assert found.of("(other)")["messages_published_total"] == 5, "a counter never goes down"
        declare(channel, "newcomer")
        found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_queues", kind="stored") == 5)
        assert found.value("opendata_queue_messages_ready", queue="newcomer") == 0, "it has the place of the first"


def test_the_largest_partitions_have_series_of_their_own(served: ServedBroker) -> None:
    with QueueClient(f"opendata://127.0.0.1:{served.port}") as client:
        client.create("q", QueueOptions(partition_by="tenant"))
        for number in range(12):
            client.send_batch("q", [1] * (number + 1), headers={"tenant": f"t{number:02}"})
        client.read("q", qty=1, where={"tenant": "t11"})
    found = scrape_until(port_of(served), lambda s: s.of("q").get("messages_in_flight"))
    assert found.value("opendata_queue_partitions", queue="q") == 12

    def series(name: str) -> dict[str, float]:
        return {one.labels["partition"]: one.value for one in found.samples if one.name == f"opendata_queue_{name}"}

    backlogs, slots = series("partition_backlog"), series("partition_slots")
    assert backlogs == {f"t{number:02}": number + 1 - (number == 11) for number in range(2, 12)} | {"(other)": 3}
    assert {key: count for key, count in slots.items() if count} == {"t11": 1}
    assert slots.keys() == backlogs.keys()


def test_keys_of_partitions_can_be_anything(served: ServedBroker) -> None:
    keys = ["x" * 300, "a\n\x00\x1b[31m", 'a"b\\', "", '"} 1 evil 2']
    with QueueClient(f"opendata://127.0.0.1:{served.port}") as client:
        client.create("q", QueueOptions(partition_by="tenant"))
        client.send_batch("q", keys, [{"tenant": key} for key in keys])
    found = scrape_until(port_of(served), lambda s: s.of("q").get("partitions") == len(keys))
    backlogs = {
        each.labels["partition"]: each.value
        for each in found.samples
        if each.name == "opendata_queue_partition_backlog" and each.value
    }
    assert backlogs == {bounded_key(key): 1 for key in keys}


def test_names_of_queues_can_be_anything(served: ServedBroker, channel: Any) -> None:
    hostile = ['a"b', "a\\b", "a\nb", "a\rb", "{}", "\u2028", "ü", "a,b=c", "\x00\x1b[31m", '"} 1\nevil 2']
    for name in hostile:
        declare(channel, name)
        send(channel, name, "x")
    found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_queues", kind="stored") == len(hostile))
    assert [found.value("opendata_queue_messages_ready", queue=name) for name in hostile] == [1] * len(hostile)


def test_two_instances_have_series_of_their_own(serve: Serve) -> None:
    served = serve("--instance", "one", "--instance", "two")
    for number, name in enumerate(("one", "two")):
        with connected(f"opendata://127.0.0.1:{served.port}/{name}") as connection:
            channel = connection.channel()
            declare(channel, "q")
            send(channel, "q", *"x" * (number + 1))

    def ready(found: Scrape) -> list[float]:
        name = "opendata_queue_messages_ready"
        return [found.value(name, queue="q", broker_instance=instance) for instance in ("one", "two")]

    found = scrape_until(port_of(served), lambda s: "messages_ready" in s.of("q"))
    assert ready(found) == [1, 2]
    assert found.value("slatedb_db_write_ops_total", broker_instance="two") > 0


def test_the_brokers_own_figures(served: ServedBroker, channel: Any, store_folder: Path) -> None:
    declare(channel, "q")
    send(channel, "q", "x" * 10_000)
    with RawClient(f"{store_folder}/by-hand.sock", preamble=b"GET / HTTP/1.1\r\n\r\n") as nonsense:
        nonsense.last_word()
    with pytest.raises(NotFound):
        channel.queue_declare("missing", passive=True)
    maintain(channel.connection, ["collect"])

    def ready(found: Scrape) -> bool:
        return bool(
            found.value("opendata_queue_checkpoint_size_bytes_sum") > 10_000
            and found.value("opendata_queue_maintenance_runs_total", duty="collect") > 0
        )

    found = scrape_until(port_of(served), ready, 60)
    values = {
        metric.name: sum(s.value for s in found.samples if s.name == PREFIX + metric.name)
        for metric in ALL
        if metric.kind != "histogram"
    }
    assert set(values) == {metric.name for metric in ALL if metric.kind != "histogram"}
    assert values["build_info"] == 1
    labels = found.families["opendata_queue_build_info"].samples[0].labels
    assert labels["version"] == version("kombu-opendata")
    assert labels["slatedb_version"] == version("slatedb")
    assert values["connections"] == 1
    assert values["connections_opened_total"] == 2
    assert values["sessions"] == 1
    assert found.value("opendata_queue_connections_refused_total", code="protocol_error") == 1
    assert found.value("opendata_queue_requests_refused_total", code="not_found") == 1
    lived = time.time() - found.value("process_start_time_seconds")
    assert 0 < values["event_loop_delay_seconds"] < lived
    assert values["journal_bytes"] >= 16 << 20
    assert values["journal_limit_bytes"] == 1 << 30
    assert values["store_stalled_seconds"] == 0
    assert time.time() - 60 < found.value("opendata_queue_maintenance_last_run_timestamp_seconds", duty="collect")
    for name in ("commit_duration_seconds", "commit_effects", "commit_size_bytes"):
        buckets = [s.value for s in found.samples if s.name == f"opendata_queue_{name}_bucket"]
        assert buckets == sorted(buckets)
        assert buckets[-1] == found.value(f"opendata_queue_{name}_count") > 0
    assert found.value("opendata_queue_commit_size_bytes_sum") > 10_000
    assert found.value("process_resident_memory_bytes") > 1 << 20
    assert found.value("python_gc_collections_total", generation="0") > 0
    assert found.value("slatedb_wal_wal_buffer_flushes_total") > 0


def test_every_metric_has_its_type_and_help(served: ServedBroker, channel: Any) -> None:
    families = scrape(port_of(served)).families
    for metric in ALL:
        family = families[PREFIX + metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert {key for s in family.samples for key in s.labels if key != "le"} <= set(metric.labels)


def test_results_and_chords_are_counted(served: ServedBroker, channel: Any, store_folder: Path) -> None:
    with RawClient(f"{store_folder}/by-hand.sock") as raw:
        raw.hello()
        raw.call(OpenChord(0, b"chord", 0, size=1))
        scrape_until(port_of(served), lambda s: s.value("opendata_queue_chords_open") == 1)
        raw.call(StoreResult(0, b"task", 2, b"value", 0, False, b"chord", 0, b"task", 0))
        raw.call(CloseChord(0, b"chord"))
    found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_chords_open") == 0)
    assert found.value("opendata_queue_results_stored_total") == 1
    assert found.value("opendata_queue_chords_completed_total") == 1


def test_tasks_of_active_jobs_are_counted(served: ServedBroker, channel: Any, store_folder: Path) -> None:
    with QueueClient(f"opendata://{quote(f'{store_folder}/by-hand.sock', safe='')}") as client:
        client.create("q")
        for job_id in ("one", "two"):
            commit_job(client, job_id, 3)
        client.reject_many("q", client.read("q", vt=60, qty=2))
        client.pop("q")  # the last task of the first job
        found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_jobs_active") == 1)
        assert found.value("opendata_queue_job_tasks", state="waiting") == 3
        client.reject_many("q", client.read("q", vt=60, qty=1))
        found = scrape_until(port_of(served), lambda s: s.value("opendata_queue_job_tasks", state="rejected") == 1)
        assert found.value("opendata_queue_job_tasks", state="waiting") == 2
