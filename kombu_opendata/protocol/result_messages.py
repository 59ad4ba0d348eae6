"""The messages about results and chords; names and chords are bytes, as the client chooses them.

See docs/rfcs/0004-results.md. The rest of the protocol, and how a message is laid out, is in :mod:`.messages`.
"""

from __future__ import annotations

from .frame_limits import Many
from .message_base import Message


# ------------------------------------------------------------------ client → broker
class StoreResult(Message, tag=45):
    """Store a result, count it as a chord's part, or both. Answer: ResultStored, after the commit.

    Without a ``name`` there is only the part, without a ``chord`` only the result. ``kind`` is 0 for a state on the
    way, 1 for a result that may be replaced, 2 for one that is kept; with ``check`` also one that is not in memory.
    A part counts once for each (index, member); an index of -1 comes last. TTLs of 0 are for ever.
    """

    rid: int
    name: bytes
    kind: int
    value: bytes
    ttl_ms: int
    check: bool = True
    chord: bytes = b""
    index: int = -1
    member: bytes = b""
    chord_ttl_ms: int = 0


class GetResults(Message, tag=46):
    """Answer: Results, of as many of the first names as fit in a page.

    ``age_ms``: none of these is older than so much, -1 for unknown; it spares looking for what is not there yet.
    """

    rid: int
    names: Many[bytes]
    age_ms: int = -1


class WatchResults(Message, tag=47):
    """Have ResultsChanged pushed: what is there now, then each change up to and with the first that is no state on the
    way. A watch ends with the connection. Answer: Ok if rid. ``age_ms`` as in GetResults."""

    rid: int
    names: Many[bytes]
    age_ms: int = -1


class UnwatchResults(Message, tag=48):
    """Answer: Ok if rid."""

    rid: int
    names: Many[bytes]


class ForgetResults(Message, tag=49):
    """Remove results. Answer: Ok."""

    rid: int
    names: Many[bytes]


class OpenChord(Message, tag=50):
    """Say what is known of a chord: its size (-1: not yet), how many more tasks its header has now, bytes that are
    handed back in ChordParts. ``again`` forgets an earlier chord of that name. ``body`` is the task id of the chord's
    callback, which fails if the last part to come is a task that expired. Answer: Ok."""

    rid: int
    chord: bytes
    ttl_ms: int
    size: int = -1
    added: int = 0
    header: bytes = b""
    again: bool = False
    body: bytes = b""


class GetChord(Message, tag=51):
    """The parts of a chord from the ``start``-th on, ordered by index. Answer: ChordParts."""

    rid: int
    chord: bytes
    start: int = 0


class CloseChord(Message, tag=52):
    """Forget a chord, its parts included. Answer: Ok."""

    rid: int
    chord: bytes


# ------------------------------------------------------------------ broker → client
class ResultStored(Message, tag=145):
    """``stored`` is False where a result was there already that is kept; ``complete``: the chord has all its parts, and
    it is this client that sends the callback."""

    rid: int
    stored: bool
    complete: bool


class Results(Message, tag=146):
    """The values of the first names asked for; None where there is no result."""

    rid: int
    values: list[bytes | None]


class ChordParts(Message, tag=147):
    """One page of a chord's parts; ``count`` is how many there are in all."""

    rid: int
    header: bytes
    parts: list[tuple[bytes, bytes]]  # member, value
    count: int


class ResultsChanged(Message, tag=148):
    """Names that are watched, their values, and whether the watch has ended with that.

    The value is None for one that is too large to push: ask for it.
    """

    results: list[tuple[bytes, bytes | None, bool]]
