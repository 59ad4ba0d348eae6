"""Renewal of locks in a forked process that gevent patches after the fork.

A server that loads an app early, such as ``gunicorn --preload``, forks before its gevent workers patch the standard
library. After the fork a connection replaces its locks, still with native ones, which do not exclude the greenlets of a
thread from each other. Therefore the connection replaces them again when gevent has patched; no greenlet runs at that
moment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def renew_after_patching(renew: Callable[[], object]) -> None:
    """Call the function when gevent has patched this process, if gevent is loaded."""
    if "gevent" not in sys.modules:
        return
    from gevent import events

    def notified(event: object) -> None:
        if isinstance(event, events.GeventDidPatchAllEvent):
            renew()

    events.subscribers.append(notified)
