"""All calls of an instance."""

from __future__ import annotations

from ...protocol.message_base import Message
from ..instance import Instance
from .history_calls import HistoryCalls
from .registry import Handler, bind_handlers


def handlers_of(instance: Instance) -> dict[type[Message], Handler]:
    """The handler of each message that a client of an instance may send."""
    engine = instance.engine
    return bind_handlers(HistoryCalls(engine.history))
