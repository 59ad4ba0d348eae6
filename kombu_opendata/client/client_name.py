"""The name of this process's clients that were given none, in the broker's records, lists and log."""

from __future__ import annotations

import os
import socket

#: the longest name that a broker takes
MAX_NAME_BYTES = 255
_process_name = ""


def name_process(name: str) -> None:
    """Give a name to the clients of this process, and of those it forks, that connect from now on; cut if too long."""
    global _process_name
    _process_name = name.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")


def default_name() -> str:
    """What :func:`name_process` was told, else ``host:pid``."""
    return _process_name or f"{socket.gethostname()}:{os.getpid()}"
