"""Staged batches: many messages that are written as one object beside the store, and committed together (RFC 0008)."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return the writer by its name of version 0.1, here to not import it with the format."""
    if name != "BatchWriter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .batch_writer import BatchWriter

    text = f"{__name__}.BatchWriter is now {BatchWriter.__module__}.BatchWriter: import it from there"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return BatchWriter
