"""A hook of mkdocs: the page of all benchmark rows, rounds and machines, from docs/benchmarks/samples.json."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]


def data_page() -> str:
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    from tests.benchmarks import report
    from tests.benchmarks.record import Record
    from tests.benchmarks.workloads import Sizes

    record = Record(ROOT / "docs" / "benchmarks" / "samples.json")
    return report.data_page(report.Run.of(record, Sizes(), {}, {}))


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    files.append(File.generated(config, "reference/benchmark-data.md", content=data_page()))
    return files
