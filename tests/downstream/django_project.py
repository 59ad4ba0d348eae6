"""A copy of ``examples/django_app`` with the app ``django_checks``, on a broker of its own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..support.processes import Child, Children, run
from ..support.workers import CeleryWorker

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "django_app"
CALL_SECONDS = 150


class DjangoProject:
    """The project, its database, and its processes.

    Args:
        url: the broker.
        folder: for the project, its database and the logs of its processes.
        started: receives the processes.
        settings: Django settings.
        module: the settings, a module of ``django_checks``.
        env: variables of all processes.

    Attributes:
        project: the folder with the project.
        env: variables of all processes.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        started: Children,
        settings: Mapping[str, Any] = {},
        *,
        module: str = "settings",
        env: Mapping[str, str] = {},
    ) -> None:
        self.url = url
        self.folder = folder
        self.project = folder / "project"
        self._started = started
        shutil.copytree(EXAMPLE, self.project)
        shutil.copytree(HERE / "django_checks", self.project / "django_checks")
        self.env = {
            "OPENDATA_URL": url,
            "DATABASE_FILE": str(folder / "db.sqlite3"),
            "DJANGO_SETTINGS_MODULE": f"django_checks.{module}",
            "CHECKED_SETTINGS": json.dumps(settings),
            **env,
        }
        self.run("manage.py", "migrate", "--verbosity=0")

    def run(self, *arguments: str) -> str:
        """Run Python with these arguments; return what it prints."""
        return run([sys.executable, *arguments], self.project, self.env, CALL_SECONDS)

    def call(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function of a module of ``django_checks`` in a process of its own; return its result."""
        printed = self.run("-m", "django_checks.call", module, function, json.dumps(arguments))
        return json.loads(printed.splitlines()[-1])

    def worker(self, *options: str) -> CeleryWorker:
        """Start a worker of one process, and wait until it consumes."""
        worker = CeleryWorker(
            "project", self.url, self.folder, "worker", "--without-mingle", *options,
            cwd=self.project, pool="prefork", env=self.env,
        )  # fmt: skip
        self._started.add(worker)
        worker.wait_until_ready()
        return worker

    def beat(self) -> Child:
        """Start beat with the schedule of the database."""
        command = [sys.executable, "-m", "celery", "-A", "project", "beat", "--scheduler=django", "--max-interval=1"]
        command += ["--loglevel=INFO", "--pidfile="]
        beat = Child(command, self.folder / "beat.log", cwd=self.project, env=self.env)
        self._started.add(beat)
        return beat
