"""Versions of Celery that tests need; CI installs the newest, and tox also older ones."""

from __future__ import annotations

import celery
import pytest

#: for tests of what Celery 5.5 and 5.6 do wrong with every broker, Redis included
from_celery_57 = pytest.mark.skipif(celery.VERSION[:2] < (5, 7), reason=f"Celery {celery.__version__} can't do it")
