"""Make the sync half of the queue client from the async half: ``python tools/unasync.py [--check]``.

``kombu_opendata/queue_client/_async`` is written by hand, ``_sync`` is what this script makes of it: it drops ``async``
and ``await`` and renames by the table below, word by word. So a call exists once. ``--check`` changes nothing and tells
with its exit code whether the sync half is up to date, as a test does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "kombu_opendata" / "queue_client"
SOURCE, TARGET = ROOT / "_async", ROOT / "_sync"
HEADER = "# Made by tools/unasync.py from ../_async/{name}: change that one, then run the script.\n"

#: in this order
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
        (r"\basync (?=def|with|for)\b", ""),
        (r"\bawait ", ""),
        (r"\b__aenter__\b", "__enter__"),
        (r"\b__aexit__\b", "__exit__"),
        (r"\b__aiter__\b", "__iter__"),
        (r"\b__anext__\b", "__next__"),
        (r"\baclosing\b", "closing"),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\bAsync(?=[A-Z])", ""),
        (r"\b_async\b", "_sync"),
        (r"\basync_calls\b", "blocking_calls"),
    )
)


def unasync(text: str, name: str) -> str:
    """The sync twin of a module's text."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return HEADER.format(name=name) + text


def stale() -> dict[Path, str]:
    """The files of the sync half that are not as they should be, and their right text."""
    wanted = {TARGET / path.name: unasync(path.read_text(), path.name) for path in sorted(SOURCE.glob("*.py"))}
    wrong = {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    return wrong | {path: "" for path in TARGET.glob("*.py") if path not in wanted}


def main() -> int:
    found = stale()
    for path, text in found.items():
        print(path.relative_to(ROOT.parents[1]))
        if "--check" not in sys.argv:
            path.write_text(text) if text else path.unlink()
    return int("--check" in sys.argv and bool(found))


if __name__ == "__main__":
    sys.exit(main())
