"""Django settings: a database in a file, no web site, and a queue in a folder."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "for this example only"
INSTALLED_APPS = ["mailing"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE_FILE", str(BASE_DIR / "db.sqlite3")),
        # The site, workers and beat write the same file: they wait for each other.
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("OPENDATA_URL", f"opendata://{Path.home()}/django-queue")
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
CELERY_RESULT_EXPIRES = 3600  # seconds
CELERY_TASK_ACKS_LATE = True  # a killed worker's task runs again elsewhere, and there is no visibility timeout to tune
CELERY_TASK_TIME_LIMIT = 300  # seconds
CELERY_BROKER_TRANSPORT_OPTIONS = {"idle_exit": 300}  # seconds
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
