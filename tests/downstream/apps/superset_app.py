"""Superset's Celery app, whose settings are the class of ``superset_config.py``, in both spellings of their names."""

import os

from celery import Celery

BROKER_URL = os.environ["CELERY_BROKER_URL"]
ANNOTATIONS = {"sql_lab.get_sql_results": {"rate_limit": "100/s"}}
# The documentation's crontabs, each minute and each night, take too long for a test.
SCHEDULE = {
    "reports.scheduler": {"task": "reports.scheduler", "schedule": 1.0, "options": {"expires": 604800}},
    "reports.prune_log": {"task": "reports.prune_log", "schedule": 3600.0},
}


class LowercaseConfig:
    """The names of Celery 4 and later."""

    broker_url = BROKER_URL
    imports = ("superset_tasks",)
    result_backend = BROKER_URL
    worker_prefetch_multiplier = 10
    task_acks_late = True
    task_annotations = ANNOTATIONS
    beat_schedule = SCHEDULE


class UppercaseConfig:
    """The names of earlier versions, in configurations that are older."""

    BROKER_URL = BROKER_URL
    CELERY_IMPORTS = ("superset_tasks",)
    CELERY_RESULT_BACKEND = BROKER_URL
    CELERYD_LOG_LEVEL = "DEBUG"
    CELERYD_PREFETCH_MULTIPLIER = 10
    CELERY_ACKS_LATE = True
    CELERY_ANNOTATIONS = ANNOTATIONS
    CELERYBEAT_SCHEDULE = SCHEDULE


app = Celery("superset")
app.config_from_object({"lowercase": LowercaseConfig, "uppercase": UppercaseConfig}[os.environ["SUPERSET_NAMES"]])
