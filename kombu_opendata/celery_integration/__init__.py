"""Celery integration beyond the Kombu transport.

* :func:`setup_maintenance`: the broker's maintenance as periodic tasks.
* ``celery -A app opendata``, in :mod:`.command`; Celery finds the command by its entry point.
* The result backend, in :mod:`.backend`.
* The ``msgspec`` serializer, in :mod:`.serializer`.
* :class:`SingletonBackend`: locks of celery-singleton.

Modules are imported when they are used: an app that imports this package loads neither a worker nor a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .maintenance_tasks import setup_maintenance
    from .singleton import SingletonBackend

__all__ = ["SingletonBackend", "setup_maintenance"]


def __getattr__(name: str) -> Any:
    if name == "setup_maintenance":
        from .maintenance_tasks import setup_maintenance

        return setup_maintenance
    if name == "SingletonBackend":
        from .singleton import SingletonBackend

        return SingletonBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
