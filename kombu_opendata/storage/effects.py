"""What a commit consists of: effects, the entries of the journal (docs/rfcs/0003-journal.md).

An effect says what happened, with every choice already made (ids, times, buckets), so applying it again to the state
before gives the same state after. Each is a tuple whose first element is one of these numbers. ``pairs`` is a flat
list id, bucket, id, bucket, …; times are ms since the epoch.
"""

from __future__ import annotations

from typing import Any

import msgspec

Effect = tuple[Any, ...]

BLOCK = 1  #: base, size — message ids up to base + size may be used
#: id, created, received, visible, deadline, retention s, headers, envelope, priority, [(queue, bucket)], session, seq,
#: queues
PUBLISH = 2
CLAIM = 3  #: queue, session, at, lease until, pairs[, how many of them were delivered before]
ACK = 4  #: queue, at, pairs
RETURN = 5  #: queue, at, pairs, costs an attempt, consumer[, visible[, whether the lease expired]]
#: queue, at, pairs, consumer, reason[, whether no attempts were left[, whether the lease expired]] — the reason is not
#: empty when the messages become dead letters
FAIL = 6
#: queue, pairs, reason, at[, why] — available messages that expired or were purged; with a reason they become dead
#: letters
REMOVE = 7
RENEW = 8  #: session, lease until[, at: by each queue's own lease from then]
DECLARE_QUEUE = 9  #: name, max attempts, done retention s, failed retention s, lease s, arguments[, at]
DELETE_QUEUE = 10  #: name
DECLARE_EXCHANGE = 11  #: name, type, durable, auto_delete, arguments
DELETE_EXCHANGE = 12  #: name
BIND = 13  #: queue, exchange, routing key, arguments
UNBIND = 14  #: queue, exchange, routing key, arguments
SESSION = 15  #: session, name
FORGET = 16  #: session — its publish counter and name
#: session, number of its call, messages so far, at, whether it is over — what a purge or a deletion of a queue removed
REMOVAL = 18
TIME = 17  #: at — the last effect of each commit: no time in the commit, or in one before, is after it
#: hash of the key, ids, expires at, digest, queues of each message
SENT_WITH_KEY = 43
EXTEND = 44  #: queue, at, pairs, lease until — in flight: the leases end then
DELAY = 45  #: queue, at, pairs, visible — available: visible from then on
DELETE = 46  #: queue, at, pairs — available or in flight, gone
ARCHIVE = 47  #: queue, at, pairs, operator — available → done
#: job id, at, first id, [(path, rows, bytes, checksum)] — a job of staged batches was committed; no path: it is inline
STAGED_COMMIT = 48
#: job id, first id, at, received, path, offset, rows, block, payload, targets, runs, places — so many rows of a
#: staged job were put into queues; see storage/staged_rows.py
STAGED_ROUTE = 49
DEAD_LETTER_SENT = 40  #: queue, id — in the commit of the publish, if somebody took it
#: queue, cursor (all fields of its record), at, rows, taken — rows are (id, bucket, priority, visible, deadline, size);
#: taken are the rows of the queue's own settled lists whose messages these are: (list, bucket, ids)
ROUTE = 41
#: queue, at, list ("done", "failed", "archived_failed"), bucket, ids, target, rows — with no target they are deleted
MOVE_SETTLED = 42
#: queue, bucket of the failed list, flat list id, failed at, attempts, … — failed → archived failed
ARCHIVE_FAILED = 54
#: name, kind, expires at, value, chord's group, index, member, chord expires at — no name: a chord's part only
RESULT = 50
FORGET_RESULTS = 51  #: names
OPEN_CHORD = (
    52  #: group, expires at, size or -1, added, header, whether to forget an earlier one[, task id of the callback]
)
CLOSE_CHORD = 53  #: group

#: what :func:`decode` raises for bytes that are no effects
UNREADABLE = (msgspec.MsgspecError, ValueError)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple])  # type: ignore[type-arg]


def encode(effects: list[Effect]) -> bytes:
    """The journal record of one commit."""
    return _encoder.encode(effects)


def decode(payload: bytes) -> list[Effect]:
    """The effects of a journal record."""
    return _decoder.decode(payload)
