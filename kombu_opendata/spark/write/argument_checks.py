"""What ``submit_tasks`` and ``stream_tasks`` were given, looked at before Spark and Celery see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from difflib import get_close_matches
from numbers import Real
from typing import Any

import cloudpickle
from pyspark.sql import Column

from ...errors import RequestError
from ...transport.publish_request import priority_of

#: what a misspelt option may be meant to be
_NAMES = (
    "app", "args", "broker_url", "compression", "countdown", "eta", "exchange", "expires", "headers", "job_id",
    "kwargs", "priority", "queue", "routing_key", "serializer", "task_id", "transport_options",
)  # fmt: skip
_TIMES = ("eta", "expires")
#: what ``apply_async`` is called with here
_OURS = ("args", "connection", "kwargs", "name", "producer", "publisher", "task_id")


def check_arguments(
    task: Any,
    args: Any,
    kwargs: Any,
    queue: Any,
    headers: Any,
    priority: Any,
    task_id: Any,
    job_id: Any,
    options: Mapping[str, Any],
) -> None:
    """See that the arguments are of the kinds that they must be; what columns hold is not looked at.

    Raises:
        RequestError: one is not; the text says what to write.
    """
    if not isinstance(task, (str, Column)) or (isinstance(task, str) and not task):
        name = getattr(task, "name", None)
        hint = f": write {name!r}" if isinstance(name, str) else ""
        raise RequestError(f"task is {task!r:.200} and must be a task's name or a Column{hint}", option="task")
    for option, columns in (("args", args), ("kwargs", kwargs)):
        if isinstance(columns, (str, Column)):
            raise RequestError(
                f"{option} is one column and must be a list of them: write {option}=[{columns!r}]", option=option
            )
    for option, value, kinds in (
        ("queue", queue, (str, Column)),
        ("task_id", task_id, (str, Column)),
        ("job_id", job_id, (str,)),
    ):
        if value is not None and not isinstance(value, kinds):
            raise RequestError(f"{option} is {value!r:.200} and must be a text", option=option)
    if headers is not None and not isinstance(headers, Mapping):
        raise RequestError(f"headers is {headers!r:.200} and must be a mapping of names to values", option="headers")
    for option, names in (("headers", headers), ("kwargs", kwargs)):
        for name in names if isinstance(names, Collection) else ():
            if not isinstance(name, str):
                raise RequestError(f"{option} has the name {name!r:.200}, which must be a text", option=option)
    if not isinstance(priority, Column):
        priority_of(priority)
    check_options(options)


def check_options(options: Mapping[str, Any]) -> None:
    """See that these can be further options of ``apply_async``.

    Raises:
        RequestError: one can't; the text says what is meant, or what to write.
    """
    for option, value in options.items():
        meant = get_close_matches(option, _NAMES, 1, 0.8)
        if meant and option not in _NAMES:  # with a `jobid`, which would be any property, a re-run would send all again
            raise RequestError(f"there is no option {option!r}: do you mean {meant[0]!r}?", option=option)
        if option in _OURS:
            raise RequestError(f"{option!r} can't be among the options of apply_async: it is set here", option=option)
        if option in _TIMES:
            _check_time(option, value)
        elif isinstance(value, Column):
            hint = " (write eta=, a column of timestamps)" if option == "countdown" else ""
            raise RequestError(f"{option} can't be a column: it is the same for all rows{hint}", option=option)
    countdown = options.get("countdown")
    if not isinstance(countdown, (Real, type(None))) or isinstance(countdown, bool):
        raise RequestError(f"countdown is {countdown!r:.200} and must be a number of seconds", option="countdown")
    priority_of(options.get("priority"))


def _check_time(option: str, value: Any) -> None:
    if value is None or isinstance(value, (Column, datetime)):
        return
    if option == "expires" and isinstance(value, Real) and not isinstance(value, bool):
        return
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        kinds = "a datetime, a text in ISO 8601" + (", a number of seconds" if option == "expires" else "")
        raise RequestError(
            f"{option} is {value!r:.200} and must be {kinds}, or a column of timestamps", option=option
        ) from None


def constant(name: str, value: Any) -> Any:
    """An argument that is the same for all rows, if executors can have it; raises RequestError."""
    try:
        cloudpickle.dumps(value)
    except Exception as exc:
        raise RequestError(f"{name} is {value!r:.200}, which can't be shipped: {exc}", option=name) from exc
    return value
