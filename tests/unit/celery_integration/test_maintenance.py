"""setup_maintenance: what it puts into an app, and the tasks against a broker in this process."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab

from kombu_opendata.broker import memory
from kombu_opendata.celery_integration import setup_maintenance
from kombu_opendata.errors import RequestError


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose broker is in this process."""
    name = f"maintenance-{uuid.uuid4().hex}"
    made = Celery("tested", broker=f"opendata+memory://{name}", set_as_current=False)
    try:
        yield made
    finally:
        made.close()
        memory.stop(name)


def new_app(**settings: Any) -> Celery:
    made = Celery("tested", broker="opendata+memory://unused", set_as_current=False)
    made.conf.update(settings)
    return made


def test_importing_it_loads_no_worker_and_no_command_line() -> None:
    probe = (
        "import sys; from kombu_opendata.celery_integration import setup_maintenance; "
        "bad = [m for m in sys.modules if m.startswith(('celery.worker', 'celery.bin', 'celery.beat', 'slatedb', "
        "'kombu_opendata.storage', 'kombu_opendata.broker', 'rich'))]; sys.exit(', '.join(bad) or 0)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_one_entry_does_it_all() -> None:
    app = new_app()
    assert setup_maintenance(app, every=30, queue="housekeeping") == ["opendata.maintain"]
    entry = app.conf.beat_schedule["opendata.maintain"]
    assert entry["task"] == "opendata.maintain"
    assert entry["schedule"].run_every == timedelta(seconds=30)
    assert entry["kwargs"] == {"again_in_seconds": 30}
    assert entry["options"] == {"expires": 30, "expiration": 30, "ignore_result": True, "queue": "housekeeping"}
    assert {f"opendata.{name}" for name in ("maintain", "route", "expire_leases", "collect")} <= set(app.tasks)


def test_an_entry_for_each_duty() -> None:
    app = new_app()
    every = {"collect": crontab(minute="0"), "expire_leases": timedelta(seconds=5)}
    assert set(setup_maintenance(app, every=every, expires=7)) == {"opendata.collect", "opendata.expire_leases"}
    entries = app.conf.beat_schedule
    assert entries["opendata.collect"]["schedule"] == crontab(minute="0")
    assert entries["opendata.collect"]["kwargs"] == {"again_in_seconds": 0}
    assert entries["opendata.expire_leases"]["kwargs"] == {"again_in_seconds": 5}
    assert entries["opendata.expire_leases"]["options"]["expires"] == 7
    assert "queue" not in entries["opendata.collect"]["options"]


def test_the_users_entries_stay_whenever_they_come() -> None:
    other = {"task": "t", "schedule": 1}
    theirs = {"opendata.maintain": {"task": "opendata.maintain", "schedule": 5.0}, "other": other}

    early = new_app(beat_schedule=theirs)
    assert early.conf.beat_schedule == theirs, "configured before"
    setup_maintenance(early)
    assert early.conf.beat_schedule == theirs

    late = new_app()
    setup_maintenance(late)
    late.conf.beat_schedule = {"other": other}
    assert set(late.conf.beat_schedule) == {"opendata.maintain", "other"}

    for settings in ({"beat_schedule": {"other": other}}, {"beat_schedule": theirs}):
        loaded = Celery("tested", set_as_current=False)
        setup_maintenance(loaded)
        loaded.config_from_object(settings)
        assert set(loaded.conf.beat_schedule) == {"opendata.maintain", "other"}
        assert ("kwargs" in loaded.conf.beat_schedule["opendata.maintain"]) == (settings["beat_schedule"] is not theirs)
        loaded.config_from_object({"beat_schedule": theirs}, force=True)
        assert loaded.conf.beat_schedule == theirs, "read again"

    assert new_app().conf.beat_schedule == {}, "an app without it has nothing of it"


def test_beat_takes_the_entries() -> None:
    app = new_app()
    setup_maintenance(app, every=30)
    entry = Scheduler(app, lazy=False).schedule["opendata.maintain"]
    assert entry.is_due().next > 0


@pytest.mark.parametrize("every", [0, -1, float("nan"), float("inf"), timedelta(0), {"collect": 0}, {"sweep": 1}, {}])
def test_what_is_no_schedule_is_refused(every: Any) -> None:
    app = new_app()
    with pytest.raises(ValueError, match="every: "):
        setup_maintenance(app, every=every)
    assert app.conf.beat_schedule == {}
    with pytest.raises(ValueError, match="expires"):
        setup_maintenance(app, expires=0)


def test_the_tasks_return_the_brokers_report(app: Celery) -> None:
    setup_maintenance(app)
    with app.connection_for_write() as connection:
        queue = connection.SimpleQueue("q")
        queue.put("soon gone", expiration=0)
        queue.put("stays")
        report = app.tasks["opendata.maintain"].apply().get()
        assert report["expired_removed"] == 1
        assert report["duties"] == ["route", "expire_leases", "collect"]
        for duty, count in (("route", "routed"), ("expire_leases", "leases_expired"), ("collect", "settled_collected")):
            report = app.tasks[f"opendata.{duty}"].apply(kwargs={"again_in_seconds": 5}).get()
            assert report["duties"] == [duty]
            assert report[count] == 0
        assert queue.qsize() == 1
        queue.close()


def test_an_unknown_duty_is_told(app: Celery) -> None:
    setup_maintenance(app)
    with pytest.raises(RequestError, match="no maintenance duty 'sweep'"):
        app.tasks["opendata.maintain"].apply(args=[["sweep"]], throw=True)


def test_another_broker_is_told() -> None:
    app = Celery("tested", broker="memory://", set_as_current=False)
    setup_maintenance(app)
    with pytest.raises(ImproperlyConfigured, match="opendata://"):
        app.tasks["opendata.maintain"].apply(throw=True)
    app.close()
