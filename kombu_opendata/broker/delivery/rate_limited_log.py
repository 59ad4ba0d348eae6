"""Log lines about events that may be very frequent, such as a client that tries wrong passwords without end.

Of each kind, a few lines are written in a period. The others are counted, and the count is written at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

PERIOD_SECONDS = 10.0
LINES_PER_PERIOD = 5


#: different warnings that are remembered
_MAX_WARNED = 10_000


class WarnOnce:
    """Writes each warning once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[str] = set()

    def warn(self, text: str, *values: object) -> None:
        """Warn, unless the same was said before."""
        said = text % values if values else text
        if said not in self._said and len(self._said) < _MAX_WARNED:
            self._said.add(said)
            self._log.warning("%s", said)


class _Kind:
    """What was said of one kind in this period."""

    __slots__ = ("count", "level", "lines", "summary", "total", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.level = logging.INFO
        self.lines = self.count = self.total = 0
        self.summary = ""


class Notices:
    """Writes a limited number of lines to one logger. ``context`` becomes fields of each line (see :mod:`.logs`)."""

    def __init__(self, log: logging.Logger, time: Callable[[], float], **context: Any) -> None:
        self._log = log
        self._time = time
        self._context = context
        self._kinds: dict[str, _Kind] = {}

    def say(self, level: int, kind: str, text: str, *args: object, **fields: Any) -> None:
        """Write a line with these fields, unless there were many of its kind in this period.

        Args:
            kind: a few words; one of a small number.
        """
        said = self._of(kind)
        if said.lines < LINES_PER_PERIOD:
            said.lines += 1
            self._log.log(level, text, *args, extra={**self._context, **fields})
        else:
            said.level = max(said.level, level)
            said.count += 1

    def add(self, kind: str, text: str, count: int) -> None:
        """Count something; ``text``, with the number in place of ``%d``, is written at once and then once a period."""
        if not count:
            return
        said = self._of(kind)
        said.summary = text
        said.total += count
        if not said.lines:
            said.lines = 1
            self._write_total(said)

    def tick(self) -> None:
        """Write the counts of periods that are over; called now and then."""
        now = self._time()
        for kind, said in list(self._kinds.items()):
            if said.until <= now:
                del self._kinds[kind]
                if said.count:
                    text = "%d more of this in %g s: %s"
                    self._log.log(said.level, text, said.count, PERIOD_SECONDS, kind, extra=self._context)
                self._write_total(said)

    def _of(self, kind: str) -> _Kind:
        said = self._kinds.get(kind)
        if said is None:
            said = self._kinds[kind] = _Kind(self._time() + PERIOD_SECONDS)
        return said

    def _write_total(self, said: _Kind) -> None:
        if said.total:
            self._log.log(said.level, said.summary, said.total, extra=self._context)
            said.total = 0
