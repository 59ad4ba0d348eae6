"""Rate-limited log lines, for events that may be very frequent, such as logins with wrong passwords.

The log has a few lines per period for each kind of event. Further events are counted, and the count is logged at the
end of the period.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

PERIOD_SECONDS = 10.0
LINES_PER_PERIOD = 5
#: maximum number of different warnings
_MAX_WARNED = 10_000


class WarnOnce:
    """Log that writes each warning once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[str] = set()

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, unless the same warning was logged before."""
        warning = text % values if values else text
        if warning not in self._logged and len(self._logged) < _MAX_WARNED:
            self._logged.add(warning)
            self._log.warning("%s", warning)


class _Kind:
    """Lines of one kind in this period."""

    __slots__ = ("count", "level", "lines", "summary", "total", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.level = logging.INFO
        self.lines = self.count = self.total = 0
        self.summary = ""


class Notices:
    """Log with a limited number of lines. ``context`` becomes fields of each line (see :mod:`.logs`)."""

    def __init__(self, log: logging.Logger, time: Callable[[], float], **context: Any) -> None:
        self._log = log
        self._time = time
        self._context = context
        self._kinds: dict[str, _Kind] = {}

    def say(self, level: int, kind: str, text: str, *args: object, **fields: Any) -> None:
        """Log a line with these fields, unless its kind has used up the lines of this period.

        Args:
            kind: a few words; the number of kinds must be small.
        """
        lines = self._of(kind)
        if lines.lines < LINES_PER_PERIOD:
            lines.lines += 1
            self._log.log(level, text, *args, extra={**self._context, **fields})
        else:
            lines.level = max(lines.level, level)
            lines.count += 1

    def add(self, kind: str, text: str, count: int) -> None:
        """Add to a count, which is logged immediately and then once per period; ``text`` has ``%d`` for it."""
        if not count:
            return
        lines = self._of(kind)
        lines.summary = text
        lines.total += count
        if not lines.lines:
            lines.lines = 1
            self._write_total(lines)

    def tick(self) -> None:
        """Log the counts of periods that are over. Called regularly."""
        now = self._time()
        for kind, lines in list(self._kinds.items()):
            if lines.until <= now:
                self._end_period(kind)

    def close(self) -> None:
        """Log the counts so far, at shutdown."""
        for kind in list(self._kinds):
            self._end_period(kind)

    def _end_period(self, kind: str) -> None:
        lines = self._kinds.pop(kind)
        if lines.count:
            text = "%d more of this in %g s: %s"
            self._log.log(lines.level, text, lines.count, PERIOD_SECONDS, kind, extra=self._context)
        self._write_total(lines)

    def _of(self, kind: str) -> _Kind:
        lines = self._kinds.get(kind)
        if lines is None:
            lines = self._kinds[kind] = _Kind(self._time() + PERIOD_SECONDS)
        return lines

    def _write_total(self, kind: _Kind) -> None:
        if kind.total:
            self._log.log(kind.level, kind.summary, kind.total, extra=self._context)
            kind.total = 0
