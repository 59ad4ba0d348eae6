"""Which of the system's errors mean that there is no room: a retry may succeed."""

from __future__ import annotations

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Whether the disk or the user's share of it is full, or a file is too large."""
    return error.errno in _FULL
