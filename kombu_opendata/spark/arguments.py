"""What ``submit_tasks`` and ``stream_tasks`` were given, looked at before Spark and Celery see it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pyspark.sql import Column

from ..errors import RequestError

#: what a misspelt option may be meant to be
_NAMES = (
    "app", "args", "broker_url", "compression", "countdown", "eta", "exchange", "expires", "headers", "job_id",
    "kwargs", "priority", "queue", "routing_key", "serializer", "task_id", "transport_options",
)  # fmt: skip


def check_arguments(
    task: Any, args: Any, kwargs: Any, queue: Any, headers: Any, job_id: Any, options: Mapping[str, Any]
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
    for option, value in (("queue", queue), ("job_id", job_id)):
        kinds = (str, Column) if option == "queue" else (str,)
        if value is not None and not isinstance(value, kinds):
            raise RequestError(f"{option} is {value!r:.200} and must be a text", option=option)
    if headers is not None and not isinstance(headers, Mapping):
        raise RequestError(f"headers is {headers!r:.200} and must be a mapping of names to values", option="headers")
    for option, value in options.items():
        meant = get_close_matches(option, _NAMES, 1, 0.8)
        if meant and option not in _NAMES:  # with a `jobid`, which would be any property, a re-run would send all again
            raise RequestError(f"there is no option {option!r}: do you mean {meant[0]!r}?", option=option)
        if isinstance(value, Column):
            hint = " (write eta=, a column of timestamps)" if option == "countdown" else ""
            raise RequestError(f"{option} can't be a column: it is the same for all rows{hint}", option=option)
