"""A real Prometheus, which scrapes a test's endpoints each second and evaluates rules."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..support.processes import Child, Children, free_ports, tail, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "monitoring"
PATIENCE_SECONDS = 60


class Prometheus(Child):
    """A server with ``examples/monitoring/prometheus.yml``, but for the intervals, the targets and the rules.

    Args:
        targets: by the name of the job.
        rules: files beside that configuration.
    """

    def __init__(self, folder: Path, targets: Mapping[str, int], *rules: str) -> None:
        (self.port,) = free_ports(1)
        config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(EXAMPLES / name) for name in rules]
        config["scrape_configs"] = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in targets.items()
        ]
        (path := folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/tsdb"]
        super().__init__(
            [*command, f"--web.listen-address=127.0.0.1:{self.port}"], folder / "prometheus.log", cwd=folder
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The elements of an instant vector: ``metric`` and ``value``; none while it does not answer."""
        self.check()
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=10) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as exc:
            if exc.code == 503:
                return []  # it replays its log
            raise AssertionError(exc.read().decode()) from exc
        except urllib.error.URLError:
            return []  # it starts
        assert data["resultType"] == "vector"
        elements: list[dict[str, Any]] = data["result"]
        return elements

    def values(self, expression: str, label: str) -> dict[str, float]:
        """The values by a label."""
        return {found["metric"].get(label, ""): float(found["value"][1]) for found in self.query(expression)}

    def wait_values(self, expression: str, label: str, wanted: dict[str, float]) -> None:
        wait_until(
            lambda: self.values(expression, label) == wanted,
            PATIENCE_SECONDS,
            lambda: f"{expression}: {wanted}, has {self.query(expression)}\n{tail(self.log)}",
        )


StartPrometheus = Callable[..., Prometheus]


@pytest.fixture
def start_prometheus(tmp_path: Path, started: Children) -> StartPrometheus:
    if shutil.which("prometheus") is None:
        reason = "Prometheus is not installed: apt-get install prometheus"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)

    def start(targets: Mapping[str, int], *rules: str) -> Prometheus:
        started.add(server := Prometheus(tmp_path, targets, *rules))
        return server

    return start
