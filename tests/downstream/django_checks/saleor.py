"""Settings as Saleor has them: all of Celery's come from the environment, and beat's schedule is in the settings."""

import os
from datetime import timedelta

from .settings import *  # noqa: F403

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "")
CELERY_TASK_ALWAYS_EAGER = not CELERY_BROKER_URL
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_RESULT_BACKEND = os.environ.get("CELERY_RESULT_BACKEND")  # type: ignore[assignment] # None: no backend
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {
    "update-search": {
        "task": "django_checks.tasks.update_search",
        "schedule": timedelta(seconds=1),
        "args": (os.environ.get("LEDGER", ""),),
    }
}
