"""Arguments of ``submit_tasks`` and ``stream_tasks`` about tasks, validated before Spark and Celery use them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from numbers import Real
from typing import Any

from pyspark.sql import Column

from ...errors import RequestError
from ...protocol.message_properties import priority_of
from ..option_text import did_you_mean

Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | Sequence[str] | None

#: arguments of ``submit_tasks`` that are not options of ``apply_async``
_ARGUMENTS = ("app", "broker_url", "job_id", "task", "transport_options")
#: arguments that are such options, but may differ from row to row
_COLUMNS = ("args", "kwargs", "task_id")
#: options of ``apply_async`` that a message can have
_CELERY_OPTIONS = (
    "argsrepr", "chain", "chord", "compression", "countdown", "declare", "delivery_mode", "eta", "exchange",
    "exchange_type", "expires", "group_id", "group_index", "headers", "ignore_result", "kwargsrepr", "link",
    "link_error", "origin", "parent_id", "priority", "queue", "retries", "root_id", "routing_key",
    "serializer", "shadow", "soft_time_limit", "stamped_headers", "time_limit",
)  # fmt: skip
#: properties of AMQP messages, which ``apply_async`` accepts as well; an option of another name would become one, too
_PROPERTIES = (
    "app_id", "cluster_id", "correlation_id", "expiration", "message_id", "reply_to", "timestamp", "type", "user_id",
)  # fmt: skip
APPLY_OPTIONS = frozenset((*_CELERY_OPTIONS, *_PROPERTIES))
_TIMES = ("eta", "expires")
#: arguments of ``apply_async`` that this package sets
_OURS = (*_COLUMNS, "connection", "name", "producer", "publisher")
#: arguments of ``apply_async`` about its call, which a job does not have for each task
_OF_CALLS = (
    "add_to_parent", "confirm_timeout", "immediate", "mandatory", "result_cls", "retry", "retry_policy", "router",
    "timeout",
)  # fmt: skip


@dataclass(frozen=True)
class TaskArguments:
    """Arguments that :func:`kombu_opendata.spark.submit_tasks` describes; ``options`` are the further ones."""

    task: Any
    args: Any = None
    kwargs: Any = None
    queue: Any = None
    priority: Any = None
    eta: Any = None
    expires: Any = None
    task_id: Any = None
    headers: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_routed_by_row(self) -> bool:
        """True if tasks or queues differ from row to row."""
        return isinstance(self.task, Column) or isinstance(self.queue, Column)

    def check(self, job_id: Any) -> None:
        """Validate the kinds of all arguments. Values in columns are not checked.

        Raises:
            RequestError: an argument is invalid; the text has the remedy.
        """
        self._check_task()
        for name, columns in (("args", self.args), ("kwargs", self.kwargs)):
            if isinstance(columns, (str, Column)):
                raise RequestError(
                    f"{name} is one column and must be a list of them: write {name}=[{columns!r}]", option=name
                )
        for name, value in (("queue", self.queue), ("task_id", self.task_id), ("job_id", job_id)):
            kinds = (str,) if name == "job_id" else (str, Column)
            if value is not None and not isinstance(value, kinds):
                raise RequestError(f"{name} is {value!r:.200} and must be a text", option=name)
        headers = self.headers
        if headers is not None and not isinstance(headers, Mapping):
            raise RequestError(f"headers is {headers!r:.200} and must map names to values", option="headers")
        for name, mapping in (("headers", headers), ("kwargs", self.kwargs)):
            for key in mapping if isinstance(mapping, Collection) else ():
                if not isinstance(key, str):
                    raise RequestError(f"{name} has the name {key!r:.200}, which must be a text", option=name)
        if not isinstance(self.priority, Column):
            priority_of(self.priority)
        check_options({**self.options, "eta": self.eta, "expires": self.expires})

    def _check_task(self) -> None:
        task = self.task
        if not task if isinstance(task, str) else not isinstance(task, Column):
            name = getattr(task, "name", None)
            hint = f": write {name!r}" if isinstance(name, str) else ""
            raise RequestError(f"task is {task!r:.200} and must be a task's name or a Column{hint}", option="task")


def check_options(options: Mapping[str, Any]) -> None:
    """Validate further options of ``apply_async``. The list is closed: no unknown name becomes a property of messages.

    Raises:
        RequestError: an option is unknown or not valid; the text names the nearest one, or the remedy.
    """
    stamps = options.get("stamped_headers")
    known = APPLY_OPTIONS | set(stamps if isinstance(stamps, (list, tuple, set)) else ())
    for option, value in options.items():
        if option not in known:
            raise RequestError(_refusal(option), option=option)
        if option in _TIMES:
            _check_time(option, value)
        elif isinstance(value, Column):
            hint = " (write eta=, a column of timestamps)" if option == "countdown" else ""
            raise RequestError(f"{option} can't be a column: it is the same for all rows{hint}", option=option)
    countdown = options.get("countdown")
    if not isinstance(countdown, (Real, type(None))) or isinstance(countdown, bool):
        raise RequestError(f"countdown is {countdown!r:.200} and must be a number of seconds", option="countdown")
    priority_of(options.get("priority"))


def _refusal(option: str) -> str:
    """Return the reason why an option can't be one of a job's messages."""
    if option in _OURS:
        return f"{option!r} can't be among the options of apply_async: it is set here"
    if option in _ARGUMENTS:
        return f"{option!r} can't be among the options of apply_async: give it beside them"
    if option in _OF_CALLS:
        return f"{option!r} has no effect on the tasks of a job: leave it out"
    return f"there is no option {option!r}{did_you_mean(option, {*APPLY_OPTIONS, *_ARGUMENTS, *_COLUMNS})}"


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
