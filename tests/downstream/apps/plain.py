"""An app with nothing but Celery, for packages that watch workers and beat from outside."""

import os

from celery import Celery

app = Celery("plain", broker=os.environ["CELERY_BROKER_URL"])
app.conf.task_send_sent_event = True
app.conf.beat_schedule = {"each-second": {"task": "plain.good", "schedule": 1.0, "args": (0,)}}


@app.task
def good(number: int) -> int:
    return number


@app.task
def bad(number: int) -> None:
    raise ValueError(number)


if __name__ == "__main__":
    for number in range(3):
        good.delay(number)
    bad.delay(0)
