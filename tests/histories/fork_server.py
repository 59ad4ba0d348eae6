"""What the server of forks imports: all programs. It ends when the program that started it does, however that ends."""

from __future__ import annotations

import ctypes
import signal

from .all_programs import PROGRAMS
from .broker_program import run_broker

__all__ = ["PROGRAMS", "end_with_parent", "run_broker"]

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
