"""The calls of one session, made without a connection."""

from __future__ import annotations

from kombu_opendata.broker.calls.compose import handlers_of
from kombu_opendata.broker.calls.context import Context
from kombu_opendata.broker.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.broker.settings import BrokerSettings
from kombu_opendata.protocol.message_base import Message


class Caller:
    """``caller(message)`` handles a message as the broker does when it comes from this session."""

    def __init__(self, instance: Instance, session: Session) -> None:
        self.session = session
        self._handlers = handlers_of(instance, BrokerSettings(store=""))
        self._context = Context(session, instance.outbox, instance.background, instance.queues, instance.name)

    def __call__(self, message: Message) -> None:
        self._handlers[type(message)].run(self._context, message)
