"""The priority of SlateDB's own threads: compaction and the writing of tables get the CPU that the broker leaves.

The public interface of SlateDB has no setting for it. Its runtime names its threads, and on Linux each thread has a
nice value, which new threads inherit from the one that starts them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")
_NAME = "slatedb-"
#: against a thread with the usual value of 0, one with 10 gets a tenth of a contested core
_NICE = 10


def yield_to_foreground() -> None:
    """Lower the priority of SlateDB's threads in this process. Does nothing where the system has no such thing."""
    if not _THREADS.is_dir():
        return
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # it has ended, or a sandbox forbids it
            if (thread / "comm").read_text().startswith(_NAME):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
