"""Messages about results and chords (docs/rfcs/0004-results.md). Clients choose the names of both, which are bytes."""

from __future__ import annotations

from typing import ClassVar

from ..permissions import RESULTS, entry, on_exchange
from .message_base import Many, Numbered, Request, WireMessage, operation
from .session_messages import Ok


# ------------------------------------------------------------------ broker → client
class ResultStored(Numbered, tag=145):
    """Reply to a StoreResult; ``stored`` is False if there was a final result already.

    ``complete`` is True if the chord has all its parts and this client must send the callback.
    """

    stored: bool
    complete: bool


class Results(Numbered, tag=146):
    """Values of the first requested names, as many as fit into a page; None means no result."""

    values: list[bytes | None]


class ChordParts(Numbered, tag=147):
    """Page of a chord's parts; ``count`` is the number of all parts."""

    header: bytes
    parts: list[tuple[bytes, bytes]]  # member, value
    count: int


class ResultsChanged(WireMessage, tag=148):
    """Changes of watched results.

    The value is None if it is too large to push; the client then requests it.
    """

    channel: ClassVar[int] = 0  # as an event of the connection
    results: list[tuple[bytes, bytes | None, bool]]  # name, value, True if the watch of the name ends


# ------------------------------------------------------------------ client → broker
@operation("store a result", on_exchange("write", RESULTS), stores=True, large=True)
class StoreResult(Request[ResultStored], tag=45):
    """Request to store a result, count it as a part of a chord, or both. Reply: ResultStored, after the commit.

    Without a ``name`` the value is only a part; without a ``chord`` only a result. ``kind`` is 0 for an intermediate
    state, 1 for a result that may be replaced, 2 for a final result. ``check`` also searches the store for an existing
    final result. A part counts once for each (index, member); an index of -1 sorts last. A TTL of 0 means no expiry.
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


@operation("get results", on_exchange("read", RESULTS), query=True, overtakes=True, large=True)
class GetResults(Request[Results], tag=46):
    """Request to get results. Reply: Results, for the first names that fit into a page.

    ``age_ms`` is the maximum age of the results (-1: unknown). The broker skips the search of the store if results of
    that age are still in memory.
    """

    names: Many[bytes]
    age_ms: int = -1


@operation("watch results", on_exchange("read", RESULTS), overtakes=True, large=True)
class WatchResults(Request[Ok], tag=47):
    """Request to watch results. Reply: Ok, unless ``rid`` is 0. ``age_ms`` is as in GetResults.

    The broker pushes ResultsChanged with the current values, then with each change, up to the first result that is not
    an intermediate state. A watch ends with the connection.
    """

    names: Many[bytes]
    age_ms: int = -1


@operation("stop watching results", entry(), overtakes=True, large=True)
class UnwatchResults(Request[Ok], tag=48):
    """Request to stop watching results. Reply: Ok, unless ``rid`` is 0."""

    names: Many[bytes]


@operation("delete results", on_exchange("write", RESULTS), overtakes=True, large=True)
class ForgetResults(Request[Ok], tag=49):
    """Request to remove results."""

    names: Many[bytes]


@operation("open a chord", on_exchange("write", RESULTS), stores=True, large=True)
class OpenChord(Request[Ok], tag=50):
    """Request to register a chord.

    ``size`` is -1 while the size is unknown, ``added`` is the number of tasks added to the chord's header, and
    ``header`` is returned in ChordParts. ``again`` deletes an earlier chord with this name. ``body`` is the task id of
    the chord's callback: if the last part comes from a task that expired, the broker stores a failed result for it.
    ``member`` is the id of an added task, with which a repetition of the request adds nothing.
    """

    chord: bytes
    ttl_ms: int
    size: int = -1
    added: int = 0
    header: bytes = b""
    again: bool = False
    body: bytes = b""
    member: bytes = b""


@operation("read a chord", on_exchange("read", RESULTS), query=True)
class GetChord(Request[ChordParts], tag=51):
    """Request to get the parts of a chord from position ``start`` on, ordered by index."""

    chord: bytes
    start: int = 0


@operation("close a chord", on_exchange("write", RESULTS))
class CloseChord(Request[Ok], tag=52):
    """Request to delete a chord and its parts."""

    chord: bytes
