"""The ``opendata-queue`` command, and ``celery -A app opendata``: one module a group of verbs; see docs/cli.md.

A verb imports what it needs when it runs, so ``--help`` and completion load no client and no storage engine.
"""

from __future__ import annotations

from .root import main
from .serve import broker

__all__ = ["broker", "main"]
