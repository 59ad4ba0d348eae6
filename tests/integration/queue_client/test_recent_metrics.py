"""The metrics of the last ten minutes, from a real broker: its own samples, and what users may see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import AccessRefused, RequestError
from kombu_opendata.protocol.messages import MetricSeries, RecentMetrics

from ...support.processes import Children, wait_until
from ...support.served import ServedBroker
from ...support.users import user_table, write_users

SECONDS = 60.0
SENT, ACKED, REJECTED = 40, 10, 3


@pytest.fixture
def client(store_folder: Path) -> Iterator[QueueClient]:
    with QueueClient(f"opendata://{store_folder}", connect_timeout=SECONDS) as opened:
        yield opened


def serve(folder: Path, started: Children, *options: str) -> ServedBroker:
    broker = ServedBroker(folder, "--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", *options)
    started.add(broker)
    return broker


def signed_in(broker: ServedBroker, user: str = "") -> QueueClient:
    login = f"{user}:x@" if user else ""
    return QueueClient(f"opendata://{login}127.0.0.1:{broker.port}", connect_timeout=SECONDS)


def sampled(client: QueueClient, queue: str, ready: int) -> RecentMetrics:
    """The metrics of a queue, once a sample has so many messages."""
    found = client.recent_metrics([queue])

    def is_there() -> bool:
        nonlocal found
        found = client.recent_metrics([queue])
        return found.queues[queue].ready[-1:] == (ready,)

    wait_until(is_there, SECONDS, lambda: f"a sample with {ready} messages: {found}")
    return found


def count(found: RecentMetrics, rates: tuple[float | None, ...]) -> float:
    """How many messages the rates after the first point are."""
    seconds = [(after - before).total_seconds() for before, after in zip(found.times, found.times[1:], strict=False)]
    return sum((rate or 0) * each for rate, each in zip(rates[1:], seconds, strict=True))


def check(found: RecentMetrics, series: MetricSeries) -> None:
    assert round(count(found, series.published_per_second), 1) == SENT + 2
    assert round(count(found, series.delivered_per_second), 1) == ACKED + REJECTED
    assert round(count(found, series.acked_per_second), 1) == ACKED
    assert round(count(found, series.failed_per_second), 1) == REJECTED
    assert series.ready[-1] == SENT - ACKED - REJECTED
    assert (series.in_flight[-1], series.delayed[-1]) == (0, 2)


def test_samples_show_what_happened_and_a_restarted_broker_begins_anew(store_folder: Path, started: Children) -> None:
    broker = serve(store_folder, started)
    with signed_in(broker) as client:
        check_samples(client)
    broker.terminate()
    with signed_in(serve(store_folder, started)) as client:
        found = sampled(client, "q", SENT - ACKED - REJECTED)
        assert found.total is not None
        assert set(found.queues["q"].published_per_second) == set(found.total.published_per_second) == {0}
        assert client.metrics("q").total == SENT + 2


def check_samples(client: QueueClient) -> None:
    client.create("q")
    client.create("idle")
    began = sampled(client, "q", 0)
    assert client.recent_metrics(["none"]).queues == {}
    client.send_batch("q", list(range(SENT)))
    client.send_batch("q", [1, 2], delay=3600)
    for number, message in enumerate(client.read("q", vt=60, qty=ACKED + REJECTED)):
        (client.archive if number < ACKED else client.reject)("q", message)
    found = sampled(client, "q", SENT - ACKED - REJECTED)
    assert found.total is not None
    assert set(found.queues) == {"q"}
    check(found, found.queues["q"])
    check(found, found.total)
    later = client.recent_metrics(["q", "idle", "q"], since=began.times[-1])
    assert later.times[0] > began.times[-1]
    assert set(later.queues) == {"q", "idle"}
    assert set(later.queues["idle"].published_per_second) == {0}
    assert client.recent_metrics(since=datetime.now(UTC)).times == ()


def test_too_many_queues_at_once(client: QueueClient) -> None:
    with pytest.raises(RequestError, match="the number of queues is 0 to 1000, not 1001"):
        client.recent_metrics(f"q{number}" for number in range(1001))


def test_who_may_not_see_all_queues_gets_no_total(store_folder: Path, started: Children) -> None:
    users = write_users(
        store_folder / "users",
        user_table("shop", "x", {"*": {"read": "^mine$", "configure": ".*"}}),
        user_table("eye", "x", {"*": {}}, roles=("monitor",)),
    )
    broker = serve(store_folder, started, "--users", str(users))
    with signed_in(broker, "shop") as client:
        client.create("mine")
        client.create("other")
        found = client.recent_metrics(["mine"])
        assert found.total is None
        assert set(found.queues) == {"mine"}
        with pytest.raises(AccessRefused, match="other"):
            client.recent_metrics(["mine", "other"])
    with signed_in(broker, "eye") as client:
        found = client.recent_metrics(["mine", "other"])
        assert found.total is not None
        assert set(found.queues) == {"mine", "other"}


def test_an_update_has_what_all_metrics_have(client: QueueClient) -> None:
    for name in ("a", "b", "c"):
        client.create(name)
        client.send(name, 1)
    first = client.metrics_update()
    assert first.changed == {"a", "b", "c"}
    client.send_batch("b", [1, 2])
    client.delete_queue("c")
    client.create("d")
    second = client.metrics_update(first)
    assert {"b", "d"} <= second.changed
    assert list(second.queues) == ["a", "b", "d"]
    whole = client.metrics_all()
    for name, one in second.queues.items():
        assert (one.length, one.total, one.counts) == (whole[name].length, whole[name].total, whole[name].counts)
        assert one.at == second.at
    assert first.queues["a"].oldest_age_seconds is not None
    later = (second.at - first.at).total_seconds()
    assert second.queues["a"].oldest_age_seconds == pytest.approx(
        first.queues["a"].oldest_age_seconds + later, abs=0.01
    )


def test_an_update_after_a_restart_has_all_queues(store_folder: Path, started: Children) -> None:
    first = serve(store_folder, started)
    with signed_in(first) as client:
        client.create("q")
        client.send_batch("q", [1, 2, 3])
        before = client.metrics_update()
    first.terminate()
    with signed_in(serve(store_folder, started)) as client:
        after = client.metrics_update(before)
        assert after.changed == {"q"}
        assert after.queues["q"].length == 3


def test_an_update_has_only_what_a_user_may_see(store_folder: Path, started: Children) -> None:
    users = write_users(
        store_folder / "users",
        user_table("admin", "x", roles=("admin",)),
        user_table("shop", "x", {"*": {"read": "^mine"}}),
    )
    broker = serve(store_folder, started, "--users", str(users))
    with signed_in(broker, "admin") as admin, signed_in(broker, "shop") as shop:
        for name in ("mine", "mine-too", "other"):
            admin.create(name)
        first = shop.metrics_update()
        assert set(first.queues) == {"mine", "mine-too"}
        admin.delete_queue("other")
        admin.delete_queue("mine-too")
        admin.send("mine", 1)
        second = shop.metrics_update(first)
        assert set(second.queues) == second.changed == {"mine"}


def test_the_status_tells_of_the_last_checkpoint(client: QueueClient) -> None:
    client.create("q")

    def checkpoint() -> dict[str, Any]:
        found: dict[str, Any] = client.status()["instances"]["default"]["checkpoint"]
        return found

    wait_until(lambda: checkpoint()["at_ms"] > 0, SECONDS, lambda: f"a checkpoint: {checkpoint()}")
    before = checkpoint()["at_ms"]
    client.send("q", 1)
    wait_until(lambda: checkpoint()["at_ms"] > before, SECONDS, lambda: f"another one: {checkpoint()}")
    assert checkpoint()["bytes"] > 0
    status = client.status()
    report = status["instances"]["default"]
    assert report["journal_limit_bytes"] > 0
    assert report["stalled_since_ms"] == status["standby_seen_at_ms"] == 0
    assert status["standby_expected"] is False
    assert {"tables", "runs", "unsorted_tables", "compactions_running", "compactions_ended"} <= set(report["disk"])
