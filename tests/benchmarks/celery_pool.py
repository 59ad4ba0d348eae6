"""The application of a worker whose pool is measured.

``celery -A`` loads it, so that the worker prepares the process for its pool as for any other application.
"""

from __future__ import annotations

import os

from .celery_app import RUN, make_app, read_run

app = make_app(read_run(os.environ[RUN]))
