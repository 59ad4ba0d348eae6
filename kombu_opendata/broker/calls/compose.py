"""All calls of an instance."""

from __future__ import annotations

from ...protocol.message_base import Message
from ..instance import Instance
from ..settings import BrokerSettings
from .explain import ExplainCalls
from .history_calls import HistoryCalls
from .registry import Handler, bind_handlers
from .replay_calls import ReplayCalls
from .staging_calls import StagingCalls


def handlers_of(instance: Instance, settings: BrokerSettings) -> dict[type[Message], Handler]:
    """The handler of each message that a client of an instance may send."""
    engine = instance.engine
    return bind_handlers(
        ReplayCalls(engine, instance.replays, instance.outbox),
        StagingCalls(instance.name, instance.staging, engine.staging, settings.max_message_bytes),
        ExplainCalls(engine),
        HistoryCalls(engine.history),
    )
