"""The floors of the coverage: `python tools/coverage_floor.py coverage.json` fails if a file or all files are below."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: percent of lines and branches: in all files, and in each
TOTAL, EACH = 90.0, 70.0


def reasons_against(report: dict[str, Any]) -> list[str]:
    """Return a sentence for each floor that the JSON report of coverage.py misses."""
    total = report["totals"]["percent_covered"]
    reasons = [f"All files: {total:.1f} % is below {TOTAL:g} %."] if total < TOTAL else []
    for path, file in sorted(report["files"].items()):
        percent = file["summary"]["percent_covered"]
        if percent < EACH:
            reasons.append(f"{path}: {percent:.1f} % is below {EACH:g} %.")
    return reasons


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text())
    print(f"{report['totals']['percent_covered']:.1f} % of lines and branches in {len(report['files'])} files")
    sys.exit("\n".join(reasons_against(report)) or None)
