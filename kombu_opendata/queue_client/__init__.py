"""A client for people without Celery: queues, messages, metrics; see docs/client-api.md.

:class:`AsyncQueueClient` is written by hand in ``_async``; :class:`QueueClient` in ``_sync`` is made of it by
``tools/unasync.py``. A group of calls is a mixin there: a class that says ``await self._calls.call(message)``.
What both share stands here, without a loop.
"""

from __future__ import annotations

from ._async.client import AsyncQueueClient
from ._sync.client import QueueClient
from .models import Message
from .queue_options import QueueOptions

__all__ = ["AsyncQueueClient", "Message", "QueueClient", "QueueOptions"]
