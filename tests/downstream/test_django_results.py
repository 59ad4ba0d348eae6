"""django-celery-results and this project's result backend, in a Django project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..support.processes import Children, tail
from .compatibility import Row
from .django_project import DjangoProject

COMPATIBILITY = Row(
    package="django-celery-results",
    tried="states, progress, revoked tasks, groups, chords, results of types without JSON; the same with `opendata`",
    result="`django-db` and `opendata` return the same, but a task that expires in its queue is REVOKED with "
    "`opendata`, and stays PENDING with `django-db`. `opendata` writes no rows for the admin pages.",
    settings='`result_backend = "django-db"`, with `result_extended` for names of tasks and entries; or `"opendata"`',
)
FAILED = ["FAILURE", "EncodeError"]


@pytest.mark.parametrize("backend", ["django-db", "opendata"])
def test_states_groups_chords_and_types(backend: str, broker_url: str, tmp_path: Path, started: Children) -> None:
    project = DjangoProject(broker_url, tmp_path, started, {"CELERY_RESULT_BACKEND": backend})
    worker = project.worker()
    assert project.call("results", "states", str(tmp_path / "gate")) == {
        "queued": "PENDING",
        "started": "STARTED",
        "progress": "PROGRESS",
        "progress of": 2,
        "held": "held",
        "held, in the end": "SUCCESS",
        "revoked": "REVOKED",
        "sum": 5,
        "retried": 2,
        "error": "ValueError('broken')",
        "failed": "FAILURE",
        "traceback": True,
        "forgotten": "PENDING",
    }
    assert project.call("results", "expired", broker_url) == {"django-db": "PENDING", "opendata": "REVOKED"}[backend]
    assert project.call("results", "workflows") == {
        "group": [0, 2, 4, 6, 8],
        "group is ready": True,
        "deleted group": None,
        "chord": 55,
        "chain with chord": 9,
        "chord with a failed part": [True, True, "FAILURE"],
    }
    assert project.call("results", "types") == {
        "datetime": ["SUCCESS", "datetime"],
        "decimal": ["SUCCESS", "Decimal"],
        "uuid": ["SUCCESS", "UUID"],
        "bytes": ["SUCCESS", "bytes"],
        "lazy text": ["SUCCESS", "str"],
        "safe text": ["SUCCESS", "str"],
        "tuple": ["SUCCESS", "list"],
        "model": FAILED,
        "queryset": FAILED,
        "object": FAILED,
    }
    assert worker.terminate() == 0, tail(worker.log)
    check_rows(project.call("results", "rows"), backend)


def check_rows(rows: dict[str, Any], backend: str) -> None:
    """Check what django-celery-results has stored: everything, or nothing."""
    assert rows["groups"] == rows["chords"] == 0
    if backend == "opendata":
        assert rows["tasks"] == {}
        return
    states = {tuple(row[:2]) for row in rows["tasks"].values()}
    prefix = "django_checks.tasks"
    assert {
        (f"{prefix}.hold", "SUCCESS"),
        (f"{prefix}.add", "REVOKED"),
        (f"{prefix}.fail", "FAILURE"),
        (f"{prefix}.result_of", "FAILURE"),
        (f"{prefix}.total", "SUCCESS"),
    } <= states
