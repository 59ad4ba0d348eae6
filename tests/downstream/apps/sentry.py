"""An app with Sentry's SDK, as its documentation has it: the same for workers, beat and senders."""

import os
from datetime import datetime
from typing import Any

import sentry_sdk
from celery import Celery
from celery.schedules import schedstate, schedule
from sentry_sdk.integrations.celery import CeleryIntegration


class Soon(schedule):
    """Due when beat starts, then at its interval; Sentry monitors no interval below a minute."""

    created_at: datetime | None = None

    def is_due(self, last_run_at: datetime) -> Any:
        self.created_at = self.created_at or last_run_at  # beat's "last run" of a new entry
        if last_run_at == self.created_at:
            return schedstate(is_due=True, next=60)
        return super().is_due(last_run_at)


sentry_sdk.init(
    dsn=os.environ["SENTRY_DSN"], traces_sample_rate=1.0, integrations=[CeleryIntegration(monitor_beat_tasks=True)]
)
app = Celery("sentry")
app.conf.beat_schedule = {
    "good-each-minute": {"task": "sentry.good", "schedule": Soon(60), "args": (1,)},
    "bad-each-minute": {"task": "sentry.bad", "schedule": Soon(60), "args": (1,)},
}


@app.task
def good(number: int) -> int:
    return number


@app.task
def bad(number: int) -> None:
    raise ValueError(f"bad {number}")


if __name__ == "__main__":
    with sentry_sdk.start_transaction(name="sender"):
        print(app.send_task("sentry.good", (1,)).id)
        print(bad.delay(2).id)
    sentry_sdk.flush(timeout=60)
