"""Messages that are stored already and move: what the effects ROUTE, MOVE_SETTLED and ARCHIVE_FAILED do to the state.

Each that comes into a queue gets an entry in its routes block, also where it says 1: it tells that another queue, or an
earlier time in this one, may have written the message's attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from ..errors import RequestError
from . import effects as fx
from .records import keys
from .records.cursor import Cursor
from .settled_log import SettledLog
from .staged_state import DONE, FAILED

if TYPE_CHECKING:
    from .state import Queue, StoreState

#: id, bucket, priority (lower first), visible at, deadline or 0, size where the queue counts bytes
Row = Sequence[int]
Which = Literal["done", "failed", "archived_failed"]
#: of a queue's settled lists: which one, a bucket of it, message ids
Taken = tuple[Which, int, list[int]]

#: all settled lists
LISTS: tuple[Which, ...] = ("done", "failed", "archived_failed")
#: where staged jobs count the messages of a list
_KINDS: dict[Which, int] = {"done": DONE, "failed": FAILED, "archived_failed": FAILED}
_KEYS: dict[Which, Callable[[str, int], bytes]] = {
    "done": keys.done_key,
    "failed": keys.failed_key,
    "archived_failed": keys.archived_failed_key,
}


def settled_log(queue: Queue, which: Which) -> SettledLog:
    """One of the queue's settled lists."""
    if which == "done":
        return queue.done
    return queue.failed if which == "failed" else queue.archived_failed


def which_list(name: str) -> Which:
    """The settled list of this name.

    Raises:
        RequestError: there is none.
    """
    for which in LISTS:
        if which == name:
            return which
    raise RequestError(f"settled messages are {', '.join(LISTS)}, not {name[:40]!r}", which=name[:40])


def bucket_key(queue: str, which: Which, number: int) -> bytes:
    """The key of a bucket of a settled list."""
    return _KEYS[which](queue, number)


def forget_at_hand(queue: Queue) -> None:
    """No bucket that was read for a move is needed any more."""
    for which in LISTS:
        settled_log(queue, which).at_hand.clear()


def route(
    state: StoreState, name: str, cursor: Sequence[Any], at: int, rows: Iterable[Row], taken: Iterable[Taken]
) -> None:
    """A queue's cursor moved on: ``rows`` are new in the queue, but those in ``taken`` were settled there."""
    queue = state.queues[name]
    settled: set[int] = set()
    staged = state.staged
    for which, bucket, ids in taken:
        settled_log(queue, which).take(bucket, ids)
        settled.update(ids)
        for id in ids if staged.active else ():
            staged.back(name, id, _KINDS[which])
    for row in rows:
        is_new = row[0] not in settled
        _add(state, queue, row, at, int(is_new))
        if state.history is not None:
            if is_new:
                state.history.routed(row[0], name)
            else:
                state.history.redriven(row[0], name, at)
        if is_new and staged.active:
            staged.joined(name, row[0])
    state.cursors[name] = Cursor(*cursor)
    state.dirty.cursors.add(name)


def move_settled(
    state: StoreState, name: str, at: int, which: Which, bucket: int, ids: list[int], target: str, rows: Iterable[Row]
) -> None:
    """Settled messages become available in ``target``, or go for good if that is empty."""
    settled_log(state.queues[name], which).take(bucket, ids)
    if not target:
        for id in ids:
            state.collect(name, id)
            if state.history is not None:
                state.history.left(id, name, at)
        return
    queue = state.queues[target]
    for row in rows:
        _add(state, queue, row, at, 0)
        if state.history is not None:
            state.history.redriven(row[0], name, at)
            if target != name:
                state.history.routed(row[0], target)
        if state.staged.active:
            state.staged.back(name, row[0], _KINDS[which], moved=target != name)
            if target != name:
                state.staged.joined(target, row[0])
    cursor = state.cursors.get(target)
    if cursor is not None and not cursor.is_done and not cursor.checks:
        state.cursors[target] = cursor._replace(checks=True)
        state.dirty.cursors.add(target)


def archive_failed(state: StoreState, name: str, bucket: int, rows: Sequence[int]) -> None:
    """Failed messages are set aside, as they are."""
    queue = state.queues[name]
    ids = list(rows[::3])
    queue.failed.take(bucket, ids)
    for row in zip(ids, rows[1::3], rows[2::3], strict=True):
        queue.archived_failed.append(*row)


def _add(state: StoreState, queue: Queue, row: Row, at: int, more: int) -> None:
    queue.counts.published += 1
    id, bucket, priority, visible_at, deadline, size = row
    entry = queue.messages.add(bucket, id, priority, visible_at, deadline, max(at, min(visible_at, at + 1)), size)
    entry.claimed_at = at  # one that is visible from the next millisecond can be claimed at once: as of then
    joined = state.dirty.joined
    joined[id] = joined.get(id, 0) + more


def settled_buckets(effect: fx.Effect) -> Iterable[tuple[str, Which, int]]:
    """The (queue, list, bucket) that must be at hand before the effect can be replayed."""
    if effect[0] == fx.ROUTE:
        for which, bucket, _ids in effect[5]:
            yield effect[1], cast(Which, which), bucket
    elif effect[0] == fx.MOVE_SETTLED:
        yield effect[1], effect[3], effect[4]
    elif effect[0] == fx.ARCHIVE_FAILED:
        yield effect[1], "failed", effect[2]


APPLY: dict[int, Callable[..., None]] = {
    fx.ROUTE: route,
    fx.MOVE_SETTLED: move_settled,
    fx.ARCHIVE_FAILED: archive_failed,
}
