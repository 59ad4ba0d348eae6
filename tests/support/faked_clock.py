"""A system clock that is wrong, for a process of its own: libfaketime, which also SlateDB's native code sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def faked_clock(ahead_seconds: float) -> dict[str, str]:
    """The environment of a process whose clock is ahead by so much, or behind; its monotonic clock is right."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        reason = "libfaketime is missing: install the package faketime"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return {
        "LD_PRELOAD": str(found[0]), "FAKETIME": f"{ahead_seconds:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
