"""Which calls wait while the broker has no memory for more messages, and which run all the same.

Every other call keeps its place behind the publishes of its connection that wait.
"""

from __future__ import annotations

from ...protocol import messages as m
from ...protocol import queue_messages as q
from ...protocol.message_base import Message

#: calls that put messages or results into memory
STORING: frozenset[type[Message]] = frozenset(
    {m.Publish, q.Send, m.StoreResult, m.OpenChord, m.CommitJob, m.Replay, m.Redrive}
)
#: calls that free memory, that look, or that show that the client is alive
OVERTAKING: frozenset[type[Message]] = frozenset(
    {
        m.Heartbeat, m.Settle, m.Credit, m.Qos, m.Cancel, q.Ping, q.Read, q.StopReading, q.SettleMessages,
        m.GetResults, m.WatchResults, m.UnwatchResults, m.ForgetResults, m.GetStatus, q.GetMetrics,
    }
)  # fmt: skip
