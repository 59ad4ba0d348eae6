"""The ``opendata-queue`` command, and ``celery -A app opendata``: one module a group of verbs; see docs/cli.md.

What a verb needs is imported when it runs, so ``--help`` and completion load no client and no storage engine.
"""

from __future__ import annotations

from .root import main
from .serve import broker

__all__ = ["broker", "main"]
