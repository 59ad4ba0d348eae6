"""Queues that Celery creates for internal use: events, remote control, and its replies."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"celeryev\..+"
    r"|(.+\.)?celery\.pidbox"
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # replies of the backend rpc://
)


def is_control_queue(name: str) -> bool:
    """Return True if Celery created this queue for internal use."""
    return _NAMES.fullmatch(name) is not None
