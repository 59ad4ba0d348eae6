"""Errors that the package logs with their tracebacks: it must not have any, whatever a client sends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self


class LoggedErrors(logging.Handler):
    """The exceptions of log records; ``with LoggedErrors(note): …``. Other logging is disabled, unless it is shown."""

    def __init__(self, note: Callable[[BaseException], object], *, shows_logs: bool = False) -> None:
        super().__init__(logging.WARNING)
        self._note, self._shows_logs = note, shows_logs
        self._log = logging.getLogger("kombu_opendata")

    def __enter__(self) -> Self:
        self._propagates = self._log.propagate
        self._log.addHandler(self)
        self._log.propagate = self._shows_logs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagates

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._note(record.exc_info[1])
