"""Spark integration: a frame's rows as Celery tasks, sent exactly once, and a store as frames (extra ``spark``).

* :func:`submit_tasks` sends each row of a frame as a task, :func:`stream_tasks` those of a streaming frame.
* :func:`read_table` reads messages, attempts and queues of a store, with or without a running broker.
* ``df.write.format("opendata")`` and ``spark.read.format("opendata")`` do the same, after :func:`register`.
* :func:`use_java` finds a Java for a session on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .result import SubmitResult, find_job
    from .runtimes import find_java, use_java
    from .source import OpenDataSource, read_table, register
    from .submit import stream_tasks, submit_tasks

_MODULES = {
    "OpenDataSource": "source", "SubmitResult": "result", "find_java": "runtimes", "find_job": "result",
    "read_table": "source", "register": "source", "stream_tasks": "submit", "submit_tasks": "submit",
    "use_java": "runtimes",
}  # fmt: skip

__all__ = [
    "OpenDataSource", "SubmitResult", "find_java", "find_job", "read_table", "register", "stream_tasks", "submit_tasks",
    "use_java",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name when it is used: :func:`use_java` must not need PySpark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
