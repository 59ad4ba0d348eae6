"""All messages of the wire protocol, and the two unions that each side decodes; ``<topic>_messages.py`` defines them.

A message is a msgpack array whose first element is the message's number. ``rid`` is the number of a request: the
client chooses it and the answer repeats it; a message without one is never answered. Times are milliseconds since the
Unix epoch, UTC. See docs/rfcs/0002-wire-protocol.md.
"""

# mypy: implicit-reexport
# ruff: noqa: I001 - the sorter would put each name on a line of its own

from __future__ import annotations

from .admin_messages import (
    CreateInstance, GetStatus, InstanceCreated, InstanceList, ListInstances, Maintain, Maintained, Reload, Reloaded,
    Status,
)  # fmt: skip
from .delivery_messages import (  # noqa: F401
    Cancel, Cancelled, CloseChannel, Consume, Credit, Deliver, Delivery, Get, Got, Lease, Outcome, Publish, Published,
    Qos, Settle, Settled,
)  # fmt: skip
from .history_messages import (
    AttemptPage, CountAttempts, CountMessages, Counts, ListAttempts, ListMessages, MessagePage, RetrieveAttempt,
    RetrieveMessage,
)  # fmt: skip
from .queue_messages import (
    AskRoutes, ControlWorker, FoundMessage, GetMessage, GetMetrics, HeldMessages, ListByState, ListQueues, ListWorkers,
    Metrics, Peek, Peeked, Ping, QueueList, Read, ReadMessages, Reclaim, Routed, Send, Sent, SettledMessages,
    SettleMessages, StatePage, StopReading, WorkerMessages, Workers,
)  # fmt: skip
from .replay_messages import (
    ArchiveFailed, CursorList, Cursors, DeleteSettled, Redrive, Redriven, Replay, ReplayStarted, SettledDeleted,
)  # fmt: skip
from .result_messages import (
    ChordParts, CloseChord, ForgetResults, GetChord, GetResults, OpenChord, Results, ResultsChanged, ResultStored,
    StoreResult, UnwatchResults, WatchResults,
)  # fmt: skip
from .session_messages import (
    BrokerGoodbye, BrokerHeartbeat, Failed, Goodbye, Heartbeat, Hello, LoggedIn, Ok, Resume, Welcome,
)  # fmt: skip
from .staging_messages import AbortJob, CommitJob, GetJob, GetStagingTarget, JobReport, Jobs, ListJobs, StagingInfo
from .standby_messages import HandingOver, HandOver, StandbyHello, StandbyWelcome, TakeOver
from .topology_messages import (
    Bind, Bindings, Count, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Explain, Explained,
    ListBindings, PurgeQueue, QueueInfo, Unbind,
)  # fmt: skip

#: what a client sends
ClientMessage = (
    Hello | Resume | Heartbeat | Goodbye
    | Publish | Consume | Cancel | Qos | Credit | Get | Settle | CloseChannel
    | DeclareQueue | DeleteQueue | PurgeQueue | DeclareExchange | DeleteExchange | Bind | Unbind | ListBindings
    | Explain | GetStatus | Maintain | Reload | CreateInstance | ListInstances
    | StoreResult | GetResults | WatchResults | UnwatchResults | ForgetResults | OpenChord | GetChord | CloseChord
    | Cursors | Replay | Redrive | DeleteSettled | ArchiveFailed
    | GetStagingTarget | CommitJob | AbortJob | GetJob | ListJobs
    | ListMessages | ListAttempts | RetrieveMessage | RetrieveAttempt | CountAttempts | CountMessages
    | Send | Read | StopReading | SettleMessages | Peek | GetMessage | ListByState | GetMetrics | ListQueues | AskRoutes
    | ListWorkers | WorkerMessages | ControlWorker | Reclaim | Ping
    | StandbyHello | HandOver
)  # fmt: skip

#: what a broker sends
BrokerMessage = (
    Welcome | LoggedIn | Ok | Failed | BrokerHeartbeat | BrokerGoodbye
    | Published | Got | Deliver | Settled | Cancelled
    | QueueInfo | Count | Bindings | Explained
    | Status | Maintained | Reloaded | InstanceCreated | InstanceList
    | ResultStored | Results | ChordParts | ResultsChanged
    | CursorList | ReplayStarted | Redriven | SettledDeleted
    | StagingInfo | JobReport | Jobs
    | MessagePage | AttemptPage | Counts
    | Sent | ReadMessages | SettledMessages | Peeked | FoundMessage | StatePage | Metrics | QueueList | Routed
    | Workers | HeldMessages
    | StandbyWelcome | TakeOver | HandingOver
)  # fmt: skip
