"""The messages about results and chords (docs/rfcs/0004-results.md). Clients choose their names, which are bytes."""

from __future__ import annotations

from ..frame_limits import Many
from .message_base import Numbered, WireMessage


# ------------------------------------------------------------------ client → broker
class StoreResult(Numbered, tag=45):
    """Store a result, count it as a part of a chord, or both. Answer: ResultStored, after the commit.

    Without a ``name`` it is only a part; without a ``chord`` it is only a result. ``kind`` is 0 for an intermediate
    state, 1 for a result that may be replaced, 2 for a final one. ``check`` also looks for a final result that is not
    in memory. A part counts once for each (index, member); an index of -1 sorts last. A TTL of 0 means for ever.
    """

    name: bytes
    kind: int
    value: bytes
    ttl_ms: int
    check: bool = True
    chord: bytes = b""
    index: int = -1
    member: bytes = b""
    chord_ttl_ms: int = 0


class GetResults(Numbered, tag=46):
    """Get results. Answer: Results, for as many of the first names as fit into a page.

    ``age_ms`` says that no result is older than this (-1: unknown), so that the broker need not look in the store for
    newer ones.
    """

    names: Many[bytes]
    age_ms: int = -1


class WatchResults(Numbered, tag=47):
    """Watch results. Answer: Ok if rid. ``age_ms`` is as in GetResults.

    The broker pushes ResultsChanged with the present values, then with each change, up to the first result that is not
    an intermediate state. A watch ends with the connection.
    """

    names: Many[bytes]
    age_ms: int = -1


class UnwatchResults(Numbered, tag=48):
    """Stop watching results. Answer: Ok if rid."""

    names: Many[bytes]


class ForgetResults(Numbered, tag=49):
    """Remove results. Answer: Ok."""

    names: Many[bytes]


class OpenChord(Numbered, tag=50):
    """Tell the broker what is known of a chord. Answer: Ok.

    ``size`` is -1 while it is unknown, ``added`` is how many more tasks the chord's header has now, and ``header`` is
    returned in ChordParts. ``again`` forgets an earlier chord with this name. ``body`` is the task id of the chord's
    callback, which fails if the last part is a task that expired.
    """

    chord: bytes
    ttl_ms: int
    size: int = -1
    added: int = 0
    header: bytes = b""
    again: bool = False
    body: bytes = b""


class GetChord(Numbered, tag=51):
    """Get the parts of a chord from number ``start`` on, ordered by index. Answer: ChordParts."""

    chord: bytes
    start: int = 0


class CloseChord(Numbered, tag=52):
    """Forget a chord and its parts. Answer: Ok."""

    chord: bytes


# ------------------------------------------------------------------ broker → client
class ResultStored(Numbered, tag=145):
    """``stored`` is False if there was a final result already.

    ``complete`` says that the chord has all its parts, and that this client must send the callback.
    """

    stored: bool
    complete: bool


class Results(Numbered, tag=146):
    """The values of the first names that were requested; None means no result."""

    values: list[bytes | None]


class ChordParts(Numbered, tag=147):
    """A page of a chord's parts; ``count`` is how many there are in all."""

    header: bytes
    parts: list[tuple[bytes, bytes]]  # member, value
    count: int


class ResultsChanged(WireMessage, tag=148):
    """Names that are watched, their values, and whether this ends the watch.

    A value that is too large to push is None: the client asks for it.
    """

    results: list[tuple[bytes, bytes | None, bool]]
