"""Messages of the wire protocol, and the two unions that each side decodes; ``<topic>_messages.py`` defines them.

A message is a msgpack array whose first element is the message's number. ``rid`` is the number of a request: the client
chooses it and the reply repeats it; a message without ``rid`` gets no reply. Times are milliseconds since the Unix
epoch, UTC. See docs/rfcs/0002-wire-protocol.md.
"""

# mypy: implicit-reexport
# ruff: noqa: I001 - the sorter would split the lists below into one name per line

from __future__ import annotations

from .admin_messages import (
    CreateInstance, GetStatus, Identity, InstanceCreated, InstanceList, ListInstances, Maintain, Maintained, Reload,
    Reloaded, Status, WhoAmI,
)  # fmt: skip
from .alter_messages import AlterQueue, PauseQueue, QueueAltered, QueuePauseReply, ResumeQueue
from .delivery_messages import (  # noqa: F401
    Cancel, Cancelled, CloseChannel, Consume, Credit, Deliver, Delivery, Get, Got, Lease, Outcome, Publish,
    PublishConfirm, Qos, Reported, ReportTasks, RunningLate, Settle, SettleConfirm,
)  # fmt: skip
from .failure_messages import (
    DismissFailures, FailureGroups, FailurePage, FailuresDismissed, FailuresRetried, GroupFailures, ListFailures,
    RetryFailures,
)  # fmt: skip
from .history_messages import (
    AttemptPage, CountAttempts, CountMessages, Counts, ListAttempts, ListMessages, MessagePage, RetrieveAttempt,
    RetrieveMessage,
)  # fmt: skip
from .queue_messages import (
    AskRoutes, ControlWorker, Figures, FoundMessage, GetFigures, GetMessage, GetMetrics, HeldMessages, ListByState,
    ListQueues, ListWorkers, Metrics, Peek, Peeked, Ping, QueueList, Read, ReadMessages, Reclaim, Routed, Send, Sent,
    SettledMessages, SettleMessages, MessageStatePage, StopReading, WorkerMessages, Workers,
)  # fmt: skip
from .replay_messages import (
    ArchiveFailed, CursorList, Cursors, DeleteSettled, Moved, MoveMessages, Redrive, Redriven, Replay, ReplayStarted,
    SettledDeleted,
)  # fmt: skip
from .result_messages import (
    ChordParts, CloseChord, ForgetResults, GetChord, GetResults, OpenChord, Results, ResultsChanged, ResultStored,
    StoreResult, UnwatchResults, WatchResults,
)  # fmt: skip
from .schedule_messages import CountDue, DueCountsReply, ListPeriodicTasks, PeriodicTaskList
from .session_messages import (
    BrokerGoodbye, BrokerHeartbeat, Failed, Goodbye, Heartbeat, Hello, LoggedIn, Ok, Resume, Welcome,
)  # fmt: skip
from .staging_messages import AbortJob, CommitJob, GetJob, GetStagingTarget, JobReport, Jobs, ListJobs, StagingInfo
from .standby_messages import HandingOver, HandOver, Prepare, Prepared, StandbyHello, StandbyWelcome, TakeOver
from .topology_messages import (
    Bind, Bindings, Count, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Explain, Explained,
    ListBindings, PurgeQueue, QueueDeclared, Unbind, Undeclared,
)  # fmt: skip

#: messages that a client sends
ClientMessage = (
    Hello | Resume | Heartbeat | Goodbye
    | Publish | Consume | Cancel | Qos | Credit | Get | Settle | ReportTasks | CloseChannel
    | DeclareQueue | DeleteQueue | PurgeQueue | AlterQueue | PauseQueue | ResumeQueue
    | DeclareExchange | DeleteExchange | Bind | Unbind | ListBindings
    | Explain | GetStatus | Maintain | Reload | WhoAmI | CreateInstance | ListInstances
    | StoreResult | GetResults | WatchResults | UnwatchResults | ForgetResults | OpenChord | GetChord | CloseChord
    | Cursors | Replay | Redrive | DeleteSettled | ArchiveFailed | MoveMessages
    | GetStagingTarget | CommitJob | AbortJob | GetJob | ListJobs
    | ListMessages | ListAttempts | RetrieveMessage | RetrieveAttempt | CountAttempts | CountMessages
    | ListFailures | GroupFailures | RetryFailures | DismissFailures
    | Send | Read | StopReading | SettleMessages | Peek | GetMessage | ListByState | GetMetrics | GetFigures
    | ListQueues | AskRoutes | ListWorkers | WorkerMessages | ControlWorker | Reclaim | Ping
    | CountDue | ListPeriodicTasks
    | StandbyHello | HandOver | Prepared
)  # fmt: skip

#: messages that a broker sends
BrokerMessage = (
    Welcome | LoggedIn | Ok | Failed | BrokerHeartbeat | BrokerGoodbye
    | PublishConfirm | Got | Deliver | SettleConfirm | Cancelled
    | QueueDeclared | Count | Bindings | Undeclared | Explained | QueueAltered | QueuePauseReply
    | Status | Maintained | Reloaded | Identity | InstanceCreated | InstanceList
    | ResultStored | Results | ChordParts | ResultsChanged
    | CursorList | ReplayStarted | Redriven | SettledDeleted | Moved
    | StagingInfo | JobReport | Jobs
    | MessagePage | AttemptPage | Counts
    | FailurePage | FailureGroups | FailuresRetried | FailuresDismissed
    | Sent | ReadMessages | SettledMessages | Peeked | FoundMessage | MessageStatePage | Metrics | Figures
    | QueueList | Routed | Workers | HeldMessages
    | DueCountsReply | PeriodicTaskList
    | StandbyWelcome | TakeOver | HandingOver | Prepare
)  # fmt: skip
