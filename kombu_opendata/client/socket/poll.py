"""Polling of descriptors: the only module in which a client waits for the operating system.

Under gevent's monkey patching ``select.poll`` is green. Eventlet removes ``poll`` and leaves a green ``select``, whose
hub lets only one greenlet read a descriptor. One greenlet may wait for deliveries while another one waits for a reply,
so each waits on a duplicate of the descriptor.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Sequence

#: 24 days: the limit of the system call
_MOST_MS = (1 << 31) - 1


def poll(reading: Sequence[int], writing: Sequence[int], timeout: float | None) -> bool:
    """Wait until a descriptor can be read or written. Return False after ``timeout`` seconds; None means no limit."""
    if not hasattr(select, "poll"):
        return _wait_select(reading, writing, timeout)
    poller = select.poll()
    for fd in reading:
        poller.register(fd, select.POLLIN | (select.POLLOUT if fd in writing else 0))
    return bool(poller.poll(None if timeout is None else min(math.ceil(timeout * 1000), _MOST_MS)))


def _wait_select(reading: Sequence[int], writing: Sequence[int], timeout: float | None) -> bool:
    copies: list[int] = []
    try:
        for fd in (*reading, *writing):
            copies.append(os.dup(fd))
        return any(select.select(copies[: len(reading)], copies[len(reading) :], (), timeout))
    finally:
        for fd in copies:
            os.close(fd)
