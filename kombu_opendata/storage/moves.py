"""The settled lists of a queue by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import RequestError
from .records import keys
from .settled_log import SettledLog

if TYPE_CHECKING:
    from .state import Queue

Which = Literal["done", "failed", "archived_failed"]


class Taken(NamedTuple):
    """Messages in one bucket of one of a queue's settled lists."""

    which: Which
    bucket: int
    ids: list[int]


#: all settled lists
LISTS: tuple[Which, ...] = ("done", "failed", "archived_failed")
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
