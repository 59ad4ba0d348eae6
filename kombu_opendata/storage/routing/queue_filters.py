"""The filters of queues: `x-filter` and `x-filter-mode` (docs/rfcs/0005-selectors.md). Memory only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ...errors import RequestError
from ...selectors import Selector, compile_selector
from ...selectors.filter_index import FilterIndex

log = logging.getLogger(__name__)

FILTER = "x-filter"
FILTER_MODE = "x-filter-mode"
#: besides what its bindings give, or only what they give and the filter lets pass
ANY, ALL = "any", "all"
MODES = (ANY, ALL)

#: asks for a message's metadata headers, as they are only needed where there are filters
Metadata = Callable[[], Mapping[str, str]]


class QueueFilter(NamedTuple):
    """A queue's filter."""

    selector: Selector
    mode: str


def filter_of(arguments: Mapping[str, Any]) -> QueueFilter | None:
    """The filter in a queue's arguments, if there is one.

    Raises:
        SelectorError: its text is no selector.
        RequestError: it is no text, or the mode is none.
    """
    text = arguments.get(FILTER)
    mode = arguments.get(FILTER_MODE, ANY)
    if mode not in MODES:
        raise RequestError(f"{FILTER_MODE} {mode!r} is unknown: use {' or '.join(MODES)}", argument=FILTER_MODE)
    return None if text is None else QueueFilter(compile_selector(text), mode)


class QueueFilters(dict[str, QueueFilter]):
    """The filters of an instance's queues, by queue. Changed by :meth:`add` and :meth:`remove` only."""

    def __init__(self) -> None:
        super().__init__()
        self._any = FilterIndex()
        self._all: dict[str, Selector] = {}

    def add(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Take in a queue that was checked before.

        A store may hold arguments that were declared when they had no effect: what is no filter has none.
        """
        self.remove(queue)
        try:
            found = filter_of(arguments)
        except RequestError as exc:
            log.error("queue %r has no filter: its %s can't be used: %s", queue, FILTER, exc.text)
            return
        if found is None:
            return
        self[queue] = found
        if found.mode == ANY:
            self._any.add(queue, found.selector)
        else:
            self._all[queue] = found.selector

    def remove(self, queue: str) -> None:
        """Forget a queue's filter, if it has one."""
        if self.pop(queue, None) is not None:
            self._any.remove(queue)
            self._all.pop(queue, None)

    def taking(self, metadata: Mapping[str, str]) -> list[str]:
        """The queues that take a message with these headers whatever it was published to."""
        return self._any.matching(metadata) if self._any else []

    def passing(self, queues: Iterable[str], metadata: Mapping[str, str]) -> tuple[str, ...]:
        """Of the queues that bindings give those whose filter lets the message pass."""
        chosen = self._all
        if not chosen:
            return tuple(queues)
        return tuple([name for name in queues if name not in chosen or chosen[name].matches(metadata)])
