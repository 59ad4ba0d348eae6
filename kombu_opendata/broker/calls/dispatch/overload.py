"""Calls that wait while the broker has no memory for more messages, and calls that run nevertheless.

Every other call keeps its place behind the delayed publishes of its connection.
"""

from __future__ import annotations

from ....protocol import messages as m
from ....protocol.messages import queue_messages as q
from ....protocol.messages.message_base import WireMessage
from ...access.quotas import SessionQuotas

#: calls that put messages or results into memory
STORING: frozenset[type[WireMessage]] = frozenset(
    {m.Publish, q.Send, m.StoreResult, m.OpenChord, m.CommitJob, m.Replay, m.Redrive, m.RetryFailures}
)
#: calls that free memory, that only read, or that show that the client is alive
OVERTAKING: frozenset[type[WireMessage]] = frozenset(
    {
        m.Heartbeat, m.Settle, m.ReportTasks, m.Credit, m.Qos, m.Cancel, q.Ping, q.Read, q.StopReading,
        q.SettleMessages, m.GetResults, m.WatchResults, m.UnwatchResults, m.ForgetResults, m.GetStatus, q.GetMetrics,
        q.GetFigures,
    }
)  # fmt: skip


def messages_of(message: WireMessage) -> int:
    """Return the number of messages that a call counts as."""
    return len(message.messages) if isinstance(message, q.Send) else 1


def check_size(quotas: SessionQuotas, message: WireMessage) -> None:
    """Check the size of a call's messages or result.

    Raises:
        LimitExceeded: a message is larger than its user or its instance may publish.
    """
    size = 0
    if isinstance(message, m.Publish):
        size = len(message.envelope)
    elif isinstance(message, q.Send):
        size = max((len(envelope) for envelope, *_rest in message.messages), default=0)
    elif isinstance(message, m.StoreResult):
        size = len(message.value)
    for quota in quotas:
        quota.check("message_bytes", size)
