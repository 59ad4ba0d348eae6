"""A commit's effects as the payload of a journal record: a msgpack array of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from ...errors import CorruptRecord
from .by_message_id import Archive, Delay, Delete, Extend
from .definitions import AlterQueue, Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind
from .deliveries import Ack, ClaimAgain, GiveUp, RemoveFor, Renew, ReturnExpired
from .effect import Effect
from .failures import HandleFailures
from .message_moves import ArchiveFailed, MoveSettled, MoveWaiting, Route
from .publishes import DeadLetterSent, Publish, ReserveIds, SentWithKey
from .sessions import ForgetSession, NameSession, NoteRemoval, SyncedTime
from .staged_jobs import CommitStaged, RouteStaged
from .task_results import CloseChord, ForgetResults, OpenChord, StoreResult
from .task_runs import FinishFailed, NoteFailures, Start

Commit = Sequence[Effect]

#: the longest form of each effect
Stored = (
    ReserveIds | Publish | ClaimAgain | Ack | ReturnExpired | GiveUp | RemoveFor | Renew
    | DeclareQueue | AlterQueue | DeleteQueue | DeclareExchange | DeleteExchange | Bind | Unbind
    | NameSession | ForgetSession | SyncedTime | NoteRemoval
    | DeadLetterSent | Route | MoveSettled | SentWithKey | Extend | Delay | Delete | Archive
    | CommitStaged | RouteStaged | StoreResult | ForgetResults | OpenChord | CloseChord | ArchiveFailed
    | Start | FinishFailed | NoteFailures | MoveWaiting | HandleFailures
)  # fmt: skip

#: the journal record of one commit: ``encode(effects)``
encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Stored])


def decode(payload: bytes) -> Commit:
    """The effects of a journal record.

    Raises:
        CorruptRecord: the bytes are not effects that this version knows.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise CorruptRecord(f"a journal record does not decode: {exc}", key=b"", offset=0) from exc


def unsynced(payload: bytes) -> int | None:
    """How many records before this one were not synced when it was written; None if it does not say so."""
    with contextlib.suppress(CorruptRecord):
        last = decode(payload)[-1:]
        if last and isinstance(last[0], SyncedTime) and last[0].unsynced >= 0:
            return last[0].unsynced
    return None
