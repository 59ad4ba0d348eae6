"""Write the tables of ``docs/queue-arguments.md`` from that of the code.

Usage: ``python -m tools.queue_argument_tables``.
"""

from __future__ import annotations

import re
from pathlib import Path

from kombu_opendata.protocol.queue_arguments import KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "queue-arguments.md"


def tables() -> list[str]:
    """Return the table of all arguments, and that of those that can be altered."""
    every = ["| argument | type | unit | default | meaning | unlike RabbitMQ |", "|---|---|---|---|---|---|"]
    every += [f"| `{a.name}` | {a.allowed} | {a.unit} | {a.default} | {a.meaning} | {a.differs} |" for a in KNOWN]
    altered = ["| argument | a new value |", "|---|---|"]
    altered += [f"| `{a.name}` | {a.altered} |" for a in KNOWN if not a.cannot_alter]
    return ["\n".join(rows) + "\n" for rows in (every, altered)]


def with_tables(page: str) -> str:
    """Return the page with its tables replaced."""
    for table in tables():
        header = table.split("\n", 1)[0]
        page = re.sub(re.escape(header) + r"\n(?:\|.*\n)*", lambda _match, table=table: table, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
