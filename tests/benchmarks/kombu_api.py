"""Kombu's names as `Any`: the package is marked as typed, but most of its functions are not."""

from __future__ import annotations

from typing import Any

from kombu.connection import Connection as _Connection
from kombu.entity import Exchange as _Exchange
from kombu.entity import Queue as _Queue

Connection: Any = _Connection
Exchange: Any = _Exchange
Queue: Any = _Queue
