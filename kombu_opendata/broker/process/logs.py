"""Log of the broker: text lines for people, or JSON lines for machines.

==============  ====================================================================
field           value
==============  ====================================================================
``time``        ISO 8601, UTC, to the millisecond
``level``       ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``
``logger``      the module
``message``     the text
``instance``    the broker's instance, if the line is about one
``queue``       the queue
``session``     the name of the client
``user``        the user who logged in, in the audit log
``right``       the right that was missing
``object``      the object of the missing right
``code``        the code of an error of this package (:mod:`kombu_opendata.errors`)
``exception``   the traceback
==============  ====================================================================
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from ...errors import OpenDataError

CONTEXT = ("instance", "queue", "session", "user", "right", "object", "code")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Formatter that writes a record as one JSON object, in ASCII without line breaks."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in CONTEXT if getattr(record, name, None) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
            line |= {**code_of(record.exc_info[1]), **line}
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


def code_of(exc: BaseException | None) -> dict[str, str]:
    """Return the code of an error of this package as a log field; no field for other errors."""
    return {"code": exc.code} if isinstance(exc, OpenDataError) else {}


def set_up(form: str, level: str) -> None:
    """Log to standard error, as ``text`` or ``json``; the level also applies to the loggers of all libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler])
    if form == "json":
        threading.excepthook = _log_thread
        sys.excepthook = _log_uncaught


def _log_thread(args: threading.ExceptHookArgs) -> None:
    """Log an error that ends a thread. By default, Python would print its traceback between the JSON lines."""
    if args.exc_value is not None:
        name = args.thread.name if args.thread is not None else "unknown"
        logging.getLogger(__name__).error("thread %s failed", name, exc_info=args.exc_value)


def _log_uncaught(_type: type[BaseException], exc: BaseException, _traceback: Any) -> None:
    logging.getLogger(__name__).critical("the broker failed", exc_info=exc)
