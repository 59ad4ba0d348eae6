"""The farm with a schedule, for beat: TICKING_LEDGER is what its entries write to."""

import os
from datetime import datetime, timedelta

from celery.schedules import crontab
from farm import app  # type: ignore[import-not-found]  # beat stands beside it

#: the crontab's clock goes ahead, so that the full minute it waits for is two seconds away
_AHEAD = timedelta(seconds=58 - app.now().second)


def now() -> datetime:
    """The time of the crontab's clock."""
    shown: datetime = app.now() + _AHEAD
    return shown


app.conf.beat_schedule = {
    "interval": {"task": "farm.note", "schedule": 0.5, "args": (os.environ["TICKING_LEDGER"], "interval")},
    "crontab": {
        "task": "farm.note",
        "schedule": crontab(nowfun=now),
        "args": (os.environ["TICKING_LEDGER"], "crontab"),
    },
}
