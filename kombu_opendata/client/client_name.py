"""Default name of this process's clients in the broker's records, lists and log."""

from __future__ import annotations

import os
import socket

#: the longest name that a broker accepts
MAX_NAME_BYTES = 255
_process_name = ""


def name_process(name: str) -> None:
    """Name the clients that this process and its forks connect from now on; a longer name is cut."""
    global _process_name
    _process_name = name.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


def default_name() -> str:
    """Return the name that :func:`name_process` set, else ``host:pid``."""
    return _process_name or f"{socket.gethostname()}:{os.getpid()}"
