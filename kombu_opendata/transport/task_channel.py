"""The part of a channel that says what became of tasks, for Celery's workers."""

from __future__ import annotations

from ..client.session.broker_connection import BrokerConnection
from ..errors import OpenDataError
from ..protocol.messages import Outcome
from .amqp_errors import translate
from .kombu_message import DeliveredMessage
from .virtual_channel import VirtualChannel


class TaskChannel(VirtualChannel):
    """A channel's settlements with reports. See docs/rfcs/0002-wire-protocol.md, "What became of tasks"."""

    @property
    def takes_reports(self) -> bool:
        """Whether the broker wants to know what becomes of tasks."""
        return self.connection is not None and self.connection.takes_reports

    def _settle_task(self, connection: BrokerConnection, message: DeliveredMessage, outcome: Outcome) -> None:
        try:
            connection.settle_message(self.channel_id, outcome, message)
        except OpenDataError as exc:
            raise translate(exc) from exc
