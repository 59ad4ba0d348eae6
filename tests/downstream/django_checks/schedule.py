"""The schedule of django-celery-beat, changed as an app or the admin pages do."""

import json
from datetime import timedelta
from typing import Any

from django.utils import timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

NOTE = "django_checks.tasks.note"


def create(ledger: str) -> None:
    """Schedule a note for each kind of entry."""
    each_second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    now = timezone.now()
    earlier = now - timedelta(minutes=5)
    another_month = CrontabSchedule.objects.create(month_of_year=str(now.month % 12 + 1))

    def add(name: str, **fields: Any) -> None:
        PeriodicTask.objects.create(name=name, task=NOTE, args=json.dumps([ledger, name]), **fields)

    add("interval", interval=each_second)
    add("crontab", crontab=CrontabSchedule.objects.create(), last_run_at=earlier)
    add("crontab of another month", crontab=another_month, last_run_at=earlier)
    add("clocked", clocked=ClockedSchedule.objects.create(clocked_time=now + timedelta(seconds=2)), one_off=True)
    add("one-off", interval=each_second, one_off=True)
    add("disabled", interval=each_second, enabled=False)
    add("to a queue", interval=each_second, queue="periodic", priority=7, expire_seconds=600)


def change(name: str, changes: dict[str, Any]) -> None:
    """Save new values of an entry's fields."""
    entry = PeriodicTask.objects.get(name=name)
    for field, value in changes.items():
        setattr(entry, field, value)
    entry.save()


def entries() -> dict[str, dict[str, Any]]:
    """Return the state of each entry."""
    return {
        entry.name: {"enabled": entry.enabled, "runs": entry.total_run_count, "has run": entry.last_run_at is not None}
        for entry in PeriodicTask.objects.all()
    }
