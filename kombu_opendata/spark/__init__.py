"""Spark integration: a frame's rows as Celery tasks, sent exactly once, and a store as frames (extra ``spark``).

* :func:`submit_tasks` sends each row of a frame as a task, :func:`stream_tasks` those of a streaming frame.
* :func:`map_tasks` sends each row as a task, and returns the rows with the results.
* :func:`read_table` reads messages, attempts and queues of a store, with or without a running broker.
* :func:`resubmit`, :func:`move_messages`, :func:`archive_failed` and :func:`purge_messages` change stored messages.
* :func:`export_history` appends attempts to files, before retention deletes them.
* ``df.write.format("opendata")`` and ``spark.read.format("opendata")`` do the same, after :func:`register`.
* :func:`use_java` finds a Java for a session on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .history_export import HistoryExport, export_history
    from .joined_results import map_tasks
    from .result import SubmitResult, find_job
    from .runtimes import find_java, use_java
    from .source import OpenDataSource, read_table, register
    from .stored_messages import archive_failed, move_messages, purge_messages, resubmit
    from .submit import stream_tasks, submit_tasks
    from .write.dry_run import DryRun

_MODULES = {
    "DryRun": "write.dry_run", "HistoryExport": "history_export", "OpenDataSource": "source", "SubmitResult": "result",
    "archive_failed": "stored_messages", "export_history": "history_export", "find_java": "runtimes",
    "find_job": "result", "map_tasks": "joined_results", "move_messages": "stored_messages",
    "purge_messages": "stored_messages", "read_table": "source", "register": "source", "resubmit": "stored_messages",
    "stream_tasks": "submit", "submit_tasks": "submit", "use_java": "runtimes",
}  # fmt: skip

__all__ = [
    "DryRun", "HistoryExport", "OpenDataSource", "SubmitResult", "archive_failed", "export_history", "find_java",
    "find_job", "map_tasks", "move_messages", "purge_messages", "read_table", "register", "resubmit", "stream_tasks",
    "submit_tasks", "use_java",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name when it is used: :func:`use_java` must not need PySpark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
