"""The worker's app; broker and result backend come from CELERY_BROKER_URL and CELERY_RESULT_BACKEND."""

from celery import Celery

app = Celery("tasks")


@app.task
def add(x: int, y: int) -> int:
    return x + y
