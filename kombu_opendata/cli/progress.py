"""Progress of long work: a bar on stderr, or nothing if that is not a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
#: receives the completed amount and the total (None: unknown)
Update = Callable[[int, int | None], None]
_LOOK_SECONDS = 0.3


def is_shown() -> bool:
    """Return True if progress is shown at all."""
    return sys.stderr.isatty()


@contextmanager
def bar(label: str) -> Iterator[Update]:
    """Show a bar that the body of the ``with`` statement updates."""
    if not is_shown():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from ..readable_text import shown

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(shown(label), total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def watched(label: str, work: Callable[[], T], measure: Callable[[], tuple[int, int | None]]) -> T:
    """Do the work in one long call, and show its progress.

    Args:
        measure: returns the progress of the work; called periodically while it runs.
    """
    if not is_shown():
        return work()
    end_event = threading.Event()
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = work()
        except BaseException as exc:
            outcome["error"] = exc
        finally:
            end_event.set()

    with bar(label) as update:
        threading.Thread(target=run, daemon=True).start()
        while not end_event.wait(_LOOK_SECONDS):
            update(*measure())
    if "error" in outcome:
        raise outcome["error"]
    value: T = outcome["value"]
    return value
