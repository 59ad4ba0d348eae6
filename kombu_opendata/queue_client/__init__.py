"""Client for programs without Celery: queues, messages, metrics; see docs/client-api.md.

:class:`AsyncQueueClient` in ``_async`` is the source, from which ``tools/unasync.py`` generates :class:`QueueClient` in
``_sync``. Each group of calls is a mixin that uses ``await self._calls.call(message)``. The modules in this
folder are shared by both and need no event loop.
"""

from __future__ import annotations

from ._async.client import AsyncQueueClient
from ._sync.client import QueueClient
from .message_models import Message
from .queue_options import QueueOptions

__all__ = ["AsyncQueueClient", "Message", "QueueClient", "QueueOptions"]
