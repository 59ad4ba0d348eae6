"""An app with routes that Spark's executors import. Only its driver needs the broker's URL."""

import os

from celery import Celery

app = Celery("routed", broker=os.environ.get("ROUTED_BROKER_URL", "opendata+memory://none"), set_as_current=False)
app.conf.task_routes = {"a.*": "alpha", "b.*": {"queue": "beta"}}
