"""The farm with a schedule, for beat: TICKING_LEDGER is what its entries write to."""

import os
from datetime import datetime, timedelta
from functools import cache

from celery.schedules import crontab, schedule
from farm import app  # type: ignore[import-not-found]  # beat stands beside it


@cache
def ahead() -> timedelta:
    """How far the entries' clock goes ahead: two seconds before a full minute when it is first looked at.

    Not when this module is imported: beat takes its time to start, and would wait a minute for the next crontab.
    """
    return timedelta(seconds=58 - app.now().second)


def now() -> datetime:
    """The time of the entries' clock. Beat orders them by their own clocks' times, so they have the same one."""
    shown: datetime = app.now() + ahead()
    return shown


app.conf.beat_schedule = {
    "interval": {
        "task": "farm.note",
        "schedule": schedule(0.5, nowfun=now),
        "args": (os.environ["TICKING_LEDGER"], "interval"),
    },
    "crontab": {
        "task": "farm.note",
        "schedule": crontab(nowfun=now),
        "args": (os.environ["TICKING_LEDGER"], "crontab"),
    },
}
