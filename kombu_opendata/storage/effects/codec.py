"""The journal record of a commit: its effects as a msgpack array."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from ...errors import CorruptRecord
from . import Effect
from .definitions import (
    AlterQueueEffect,
    BindEffect,
    DeclareExchangeEffect,
    DeclareQueueEffect,
    DeleteExchangeEffect,
    DeleteQueueEffect,
    UnbindEffect,
)
from .deliveries import (
    AckEffect,
    ArchiveEffect,
    ClaimAgainEffect,
    DelayEffect,
    DeleteEffect,
    ExtendEffect,
    GiveUpEffect,
    RemoveForEffect,
    RenewEffect,
    ReturnExpiredEffect,
)
from .message_moves import ArchiveFailedEffect, MoveSettledEffect, MoveWaitingEffect, RouteEffect
from .publishes import (
    DeadLetterSentEffect,
    ForgetSessionEffect,
    NameSessionEffect,
    NoteRemovalEffect,
    PublishEffect,
    ReserveIdsEffect,
    SentWithKeyEffect,
    SyncedTimeEffect,
)
from .staged_jobs import CommitStagedEffect, RouteStagedEffect
from .tasks import (
    CloseChordEffect,
    FinishFailedEffect,
    ForgetResultsEffect,
    HandleFailuresEffect,
    NoteFailuresEffect,
    OpenChordEffect,
    StartEffect,
    StoreResultEffect,
)

Commit = Sequence[Effect]

#: the longest form of each effect
Stored = (
    ReserveIdsEffect | PublishEffect | ClaimAgainEffect | AckEffect | ReturnExpiredEffect | GiveUpEffect
    | RemoveForEffect | RenewEffect | DeclareQueueEffect | AlterQueueEffect | DeleteQueueEffect
    | DeclareExchangeEffect | DeleteExchangeEffect | BindEffect | UnbindEffect | NameSessionEffect
    | ForgetSessionEffect | SyncedTimeEffect | NoteRemovalEffect | DeadLetterSentEffect | RouteEffect
    | MoveSettledEffect | SentWithKeyEffect | ExtendEffect | DelayEffect | DeleteEffect | ArchiveEffect
    | CommitStagedEffect | RouteStagedEffect | StoreResultEffect | ForgetResultsEffect | OpenChordEffect
    | CloseChordEffect | ArchiveFailedEffect | StartEffect | FinishFailedEffect | NoteFailuresEffect
    | MoveWaitingEffect | HandleFailuresEffect
)  # fmt: skip

#: the journal record of one commit: ``encode(effects)``
encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Stored])


def decode(payload: bytes) -> Commit:
    """Decode the effects of a journal record.

    Raises:
        CorruptRecord: the bytes are not effects that this version knows.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise CorruptRecord(f"a journal record does not decode: {exc}", key=b"", offset=0) from exc


def unsynced(payload: bytes) -> int | None:
    """Return the number of unsynced records before this one when it was written; None if the record lacks it."""
    with contextlib.suppress(CorruptRecord):
        last = decode(payload)[-1:]
        if last and isinstance(last[0], SyncedTimeEffect) and last[0].unsynced >= 0:
            return last[0].unsynced
    return None
