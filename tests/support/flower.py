"""Flower, as a user starts it on an app of tests."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .processes import Child, tail, wait_until
from .workers import APPS

PATIENCE_SECONDS = 60


class Flower(Child):
    """Flower on a port that the system chose.

    Attributes:
        command: what starts it, after ``celery -A`` and the app.
    """

    command: tuple[str, ...] = ("opendata", "flower")

    def __init__(
        self,
        url: str,
        folder: Path,
        *options: str,
        app: str = "farm",
        cwd: Path = APPS,
        env: Mapping[str, str] = {},
        **settings: Any,
    ) -> None:
        command = [sys.executable, "-m", "celery", "-A", app, *self.command, "--port=0", *options]
        env = {
            "CELERY_BROKER_URL": url, "FARM_READY": "", "FARM_SETTINGS": json.dumps(settings),
            "FLOWER_UNAUTHENTICATED_API": "true", "FLOWER_ADDRESS": "127.0.0.1", **env,
        }  # fmt: skip
        super().__init__(command, folder / "flower.log", cwd=cwd, env=env)

    def wait_ready(self) -> None:
        """Until it says where it listens."""
        wait_until(lambda: self.ended or self._page() is not None, PATIENCE_SECONDS, lambda: tail(self.log))
        self.check()

    def _page(self) -> str | None:
        found = re.search(r"Visit me at (http://\S+?)/?\n", self.log.read_text())
        return found[1] if found else None

    def read(self, path: str) -> str:
        """A page's text; an error of Flower's is an error of the test."""
        with urllib.request.urlopen(f"{self._page()}{path}", timeout=PATIENCE_SECONDS) as answer:
            text: str = answer.read().decode()
        return text

    def api(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read(f"/api/{path}"))
        return found

    def lengths(self) -> dict[str, dict[str, Any]]:
        """The figures of the active queues, by name."""
        return {queue.pop("name"): queue for queue in self.api("queues/length")["active_queues"]}
