"""What Celery needs beyond a Kombu transport.

* :func:`setup_maintenance`: the broker's maintenance as periodic tasks.
* ``celery -A app opendata``: the command, in :mod:`.command`; Celery finds it by its entry point.
* The ``msgspec`` serializer, in :mod:`.serializer`.

Nothing is imported before it is used: an app that imports this loads no worker and no command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .maintenance_tasks import setup_maintenance

__all__ = ["setup_maintenance"]


def __getattr__(name: str) -> Any:
    if name == "setup_maintenance":
        from .maintenance_tasks import setup_maintenance

        return setup_maintenance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
