"""The program of docs/spark.md prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ..support.processes import Children
from ..support.spark import PROJECT
from ..support.workers import CeleryWorker

pytestmark = pytest.mark.timeout(600)


def test_the_program(
    spark: Any, started: Children, broker_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (PROJECT / "docs/spark.md").read_text()
    tasks, program = re.findall(r"(?ms)^```python\n(.+?)^```", page)[:2]
    (output,) = re.findall(r"(?ms)^```text\n(.+?)^```", page)
    assert "opendata:///tmp/shop" in tasks
    (tmp_path / "shop.py").write_text(tasks.replace("opendata:///tmp/shop", broker_url))
    started.add(CeleryWorker("shop", broker_url, tmp_path, "shop", cwd=tmp_path, concurrency=2, pool="threads"))

    exec(compile(program.replace("opendata:///tmp/shop", broker_url), "docs/spark.md", "exec"), {})

    assert capsys.readouterr().out == output
