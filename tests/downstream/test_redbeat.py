"""RedBeat keeps its schedule in Redis: with this broker's URL alone it does not start."""

from __future__ import annotations

import sys
from pathlib import Path

from ..support.processes import Child, Children
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import APPS

COMPATIBILITY = Row(
    package="celery-redbeat",
    tried="`celery beat --scheduler redbeat.RedBeatScheduler`",
    result="Beat ends: its schedule and its lock are in Redis, and it takes only Redis URLs.",
    settings="django-celery-beat for entries that change while beat runs, else Celery's own scheduler; one beat",
)


def test_beat_refuses_this_brokers_url(broker: ServedBroker, tmp_path: Path, started: Children) -> None:
    command = [sys.executable, "-m", "celery", "-A", "plain", "beat", "--scheduler=redbeat.RedBeatScheduler"]
    env = {"CELERY_BROKER_URL": broker.url}
    started.add(beat := Child([*command, "--pidfile="], tmp_path / "beat.log", cwd=APPS, env=env))
    assert beat.wait(60) != 0
    assert "Redis URL must specify one of the following schemes" in beat.log.read_text()
