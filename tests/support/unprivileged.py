"""Tests of missing rights also run as root: with the effective user of nobody for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODY = 65_534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's right to write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
