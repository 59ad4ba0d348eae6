"""The example's settings, with the packages under test. ``CHECKED_SETTINGS`` has those of a single test, as JSON."""

import json
import os

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [
    *INSTALLED_APPS,
    "django_celery_beat",
    "django_celery_results",
    "django_checks",
]
SEARCH_QUEUE_NAME = os.environ.get("SEARCH_QUEUE_NAME")
CELERY_TASK_TRACK_STARTED = True
CELERY_RESULT_EXTENDED = True
globals().update(json.loads(os.environ.get("CHECKED_SETTINGS", "{}")))
