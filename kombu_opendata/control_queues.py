"""Queues that Celery makes for itself: events, remote control, and the replies to it."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"celeryev\..+"
    r"|(.+\.)?celery\.pidbox"
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # the replies of the backend rpc://
)


def is_control_queue(name: str) -> bool:
    """Whether Celery made this queue for itself."""
    return _NAMES.fullmatch(name) is not None
