"""A task of celery-once."""

import json
import os
import sys

from celery import Celery
from celery_once import AlreadyQueued, QueueOnce

app = Celery("once")
app.conf.ONCE = json.loads(os.environ["ONCE"])


@app.task(base=QueueOnce)
def once(number: int) -> int:
    return number


@app.task(base=QueueOnce)
def fails(number: int) -> None:
    raise ValueError(number)


if __name__ == "__main__":
    try:
        print(app.tasks[f"once.{sys.argv[1]}"].delay(1).id)
    except AlreadyQueued:
        print("already queued")
    except ValueError as exc:
        print(exc)
