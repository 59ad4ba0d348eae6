"""Command line: ``opendata-queue`` and ``celery -A app opendata``, with one module for each group of verbs.

See docs/cli.md. A verb imports its dependencies when it runs, so ``--help`` and completion load no client and no
storage engine. This module imports nothing, so that ``__main__`` can report what a broken installation lacks.
"""

from __future__ import annotations


def main() -> None:
    """Run ``opendata-queue``."""
    try:
        from .root import main as command
    except KeyboardInterrupt:  # raised before the commands are loaded, which report it
        raise SystemExit(130) from None

    command()
