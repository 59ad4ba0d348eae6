"""Tests of missing rights also run as root: with the effective user of nobody for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65_534
#: tests with two users
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's right to write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
