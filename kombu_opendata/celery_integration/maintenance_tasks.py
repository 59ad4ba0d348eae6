"""Maintenance of the broker as Celery tasks in the beat schedule.

The broker does its maintenance automatically. With these tasks the app's beat schedules it and the app's monitoring
shows it, and each run returns a report:

=========================  =================================================================
task                       duty
=========================  =================================================================
``opendata.maintain``      all duties, or those in its argument
``opendata.route``         routes stored messages that no publish has routed
``opendata.expire_leases`` returns messages of consumers that did not reconnect
``opendata.collect``       removes messages past their retention or deadline
=========================  =================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, schedule

from ..client.maintain import DEFAULT_TIMEOUT_SECONDS, maintain
from ..client.session.broker_connection import BrokerConnection

PREFIX = "opendata."
MAINTAIN = f"{PREFIX}maintain"
#: duties with a task each
DUTIES = ("route", "expire_leases", "collect")
DEFAULT_EVERY_SECONDS = 60.0
#: for a schedule without a fixed period, such as a crontab
DEFAULT_EXPIRES_SECONDS = 60.0

Every: TypeAlias = "float | timedelta | BaseSchedule"


def setup_maintenance(
    app: Celery,
    *,
    every: Every | Mapping[str, Every] = DEFAULT_EVERY_SECONDS,
    queue: str | None = None,
    expires: float | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
) -> list[str]:
    """Register the maintenance tasks and add them to the app's beat schedule.

    Call it once, in the module that creates the app, which both workers and beat load. Entries of the same names in the
    app's ``beat_schedule`` have precedence.

    Args:
        app: the app whose broker the tasks maintain.
        every: the schedule of the entry ``opendata.maintain``, which does all duties: seconds, a timedelta or a Celery
            schedule. A mapping of ``route``, ``expire_leases`` and ``collect`` to such values adds an entry for each
            duty instead.
        queue: the queue of the tasks' messages; None leaves it to the app's routing.
        expires: seconds after which worker and broker drop a message that was not run; None means one period.
        timeout: seconds after which the task of a run fails; the broker continues the run.

    Returns:
        The names of the schedule's entries.

    Raises:
        ValueError: an unknown duty, or a time that is not positive.
    """
    schedules = _schedules(every)
    if expires is not None and expires <= 0:
        raise ValueError(f"expires must be a positive number of seconds, not {expires!r}")
    entries = {name: _entry(name, when, queue, expires) for name, when in schedules.items()}
    _register(app, timeout)

    def add_entries(**_: Any) -> None:
        app.conf.beat_schedule = {**entries, **app.conf.beat_schedule}

    # The signal is sent whenever settings are loaded, because new settings have only the user's schedule.
    app.on_after_configure.connect(add_entries, weak=False)
    if app.configured:
        add_entries()
    return list(entries)


def _schedules(every: Every | Mapping[str, Every]) -> dict[str, BaseSchedule]:
    if not isinstance(every, Mapping):
        return {MAINTAIN: _schedule(every, MAINTAIN)}
    unknown = sorted(set(every).difference(DUTIES))
    if unknown or not every:
        raise ValueError(
            f"every: unknown duty {unknown[0]!r}" if unknown else f"every: name some of {', '.join(DUTIES)}"
        )
    return {PREFIX + duty: _schedule(when, duty) for duty, when in every.items()}


def _schedule(when: Every, name: str) -> BaseSchedule:
    if isinstance(when, BaseSchedule):
        return when
    seconds: float = when.total_seconds() if isinstance(when, timedelta) else float(when)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"every: {name} needs a positive number of seconds, not {when!r}")
    return schedule(timedelta(seconds=seconds))


def _entry(name: str, when: BaseSchedule, queue: str | None, expires: float | None) -> dict[str, Any]:
    period = when.run_every.total_seconds() if isinstance(when, schedule) else None
    lifetime = expires or period or DEFAULT_EXPIRES_SECONDS
    # ``expires`` is for the worker and ``expiration`` for the broker, where messages expire even if no worker runs.
    options: dict[str, Any] = {"expires": lifetime, "expiration": lifetime, "ignore_result": True}
    if queue is not None:
        options["queue"] = queue
    return {"task": name, "schedule": when, "kwargs": {"again_in_seconds": period or 0.0}, "options": options}


def _register(app: Celery, timeout: float) -> None:
    @app.task(name=MAINTAIN, shared=False)
    def run(duties: list[str] | None = None, again_in_seconds: float = 0.0) -> dict[str, Any]:
        """Run these maintenance duties, by default all; return the broker's report."""
        return maintain_broker(app, duties or (), again_in_seconds=again_in_seconds, timeout=timeout)

    for duty in DUTIES:
        _register_duty(app, duty, timeout)


def _register_duty(app: Celery, duty: str, timeout: float) -> None:
    @app.task(name=PREFIX + duty, shared=False)
    def run(again_in_seconds: float = 0.0) -> dict[str, Any]:
        """Run this duty; return the broker's report."""
        return maintain_broker(app, (duty,), again_in_seconds=again_in_seconds, timeout=timeout)


def maintain_broker(app: Celery, duties: Any = (), **options: Any) -> dict[str, Any]:
    """Run maintenance duties in the app's broker now; arguments, result and errors are those of ``maintain``.

    Raises:
        ImproperlyConfigured: the app's broker has another transport.
    """
    with app.pool.acquire(block=True) as connection:
        return maintain(broker_connection(connection), duties, **options)


def broker_connection(connection: Any) -> BrokerConnection:
    """Return the client's connection of a kombu.Connection; raise ImproperlyConfigured if it has another transport."""
    if connection.transport.driver_type != "opendata":
        raise ImproperlyConfigured(
            f"the app's broker is {connection.as_uri()}: set broker_url to an opendata:// URL, or don't use this"
        )
    client: BrokerConnection = connection.connection
    return client
