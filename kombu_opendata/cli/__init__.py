"""The ``opendata-queue`` command, and ``celery -A app opendata``: one module a group of verbs; see docs/cli.md.

A verb imports what it needs when it runs, so ``--help`` and completion load no client and no storage engine. This
module imports nothing at all, so that ``__main__`` can report what a broken installation lacks.
"""

from __future__ import annotations


def main() -> None:
    """``opendata-queue``."""
    try:
        from .root import main as command
    except KeyboardInterrupt:  # before the commands are loaded, which report it
        raise SystemExit(130) from None

    command()
