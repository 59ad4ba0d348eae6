"""Clients for programs without Celery: queues, messages, metrics; see docs/client-api.md.

Each group of calls of :class:`QueueClient` is a mixin in its own module; :class:`AsyncQueueClient` runs them on
threads.
"""

from __future__ import annotations

from .async_client import AsyncQueueClient
from .client import QueueClient
from .message_models import Message
from .queue_options import QueueOptions

__all__ = ["AsyncQueueClient", "Message", "QueueClient", "QueueOptions"]
