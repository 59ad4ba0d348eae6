"""Delay of repeated publishes of a refused message.

Kombu's retry policies wait between attempts to connect. After an error of a channel Kombu publishes again immediately,
so that three retries end within a millisecond, and endless retries overload the broker.
"""

from __future__ import annotations

import time

from ..client.session.uncertain_publishes import content_of
from ..protocol.messages import Publish

#: the default of Celery's ``task_publish_retry_policy``
WAIT_SECONDS = 0.2


class RetryPace:
    """Last message that was refused on a channel."""

    __slots__ = ("_content",)

    def __init__(self) -> None:
        self._content = b""

    def refused(self, message: Publish) -> None:
        """Record a refused message. Wait, unless it was refused for the first time."""
        content = content_of(message)
        if content == self._content:
            time.sleep(WAIT_SECONDS)
        self._content = content
