"""Message that ``apply_async`` of a task would send, created by Celery with its options, routes and signals.

Celery publishes a message with sample arguments to a producer that captures it. Some parts differ from row to row: the
id, for which the message has a placeholder, and those of known names (``eta``, ``priority``, …). The others are the
same for every row of a job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from numbers import Real
from typing import Any

from celery.utils.saferepr import saferepr
from kombu.compression import encoders, get_encoder
from kombu.messaging import Producer

from ...celery_integration.broker_access import new_plain_app
from ...errors import RequestError
from ...protocol.unique_key import HEADER as UNIQUE

log = logging.getLogger(__name__)

#: placeholder of a task's id in a template
ID_MARKER = "00000000-opendata-task-id-000000000000"


@dataclass(frozen=True)
class Template:
    """Message without its arguments. Picklable."""

    serializer: str
    compression: str | None
    content_type: str
    content_encoding: str
    #: headers and properties as published, with :data:`ID_MARKER` in place of the task's id
    headers: dict[str, Any]
    properties: dict[str, Any]
    embed: dict[str, Any]  # the third part of the body: callbacks, errbacks, chain, chord
    exchange: str
    routing_key: str
    repr_limits: tuple[int, int, int]  # the maximum lengths of argsrepr and kwargsrepr, and the levels of both
    #: Kombu's queues and exchanges that ``apply_async`` would have declared
    declare: tuple[Any, ...] = field(default=(), compare=False)
    #: the time at which Celery created the message, ms since the epoch
    made_at_ms: int = field(default=0, compare=False)
    counted: tuple[str, ...] = ()  # those of the headers ``eta`` and ``expires`` that are relative to ``made_at_ms``
    #: True if ``expires`` is an absolute time; the property ``expiration`` is then the time left until it
    is_dated: bool = False
    #: those of the headers ``argsrepr`` and ``kwargsrepr`` that are not the reprs of the arguments
    shown: tuple[str, ...] = ()

    def at(self, now_ms: int) -> Template:
        """Return the template as Celery would create it at this time, ms since the epoch."""
        later_ms = now_ms - self.made_at_ms
        later = timedelta(milliseconds=later_ms)
        times = {name: (datetime.fromisoformat(self.headers[name]) + later).isoformat() for name in self.counted}
        expiration = {}
        if self.is_dated:
            expiration["expiration"] = str(max(0, int(self.properties["expiration"]) - later_ms))
        headers, properties = {**self.headers, **times}, {**self.properties, **expiration}
        return replace(self, headers=headers, properties=properties, made_at_ms=now_ms)


class NotSerialized(RequestError):
    """The serializer refuses the type of an argument; ``values["serializer"]`` names it."""


class _Captured(BaseException):
    """Signal that ends a publish; a BaseException, because Celery would handle an Exception as a failure."""


class _Probe(Producer):
    """Producer that captures the message instead of publishing it, so that no signal reports a sent task."""

    def _prepare(
        self,
        body: Any,
        serializer: str | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        compression: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> Any:
        self.body = body
        self.used_serializer = serializer or self.serializer or "json"
        self.used_compression = compression
        if compression:
            try:
                get_encoder(compression)
            except KeyError as exc:
                known = ", ".join(sorted(name for name in encoders() if "/" in name))
                text = f"there is no compression {compression!r}: choose from {known}"
                raise RequestError(text, compression=compression) from exc
        try:
            return super()._prepare(body, serializer, content_type, content_encoding, compression, headers)
        except Exception as exc:
            name = self.used_serializer
            raise NotSerialized(f"the serializer {name!r} refuses the arguments: {exc}", serializer=name) from exc

    def _publish(
        self, body: Any, priority: int | None, content_type: str, content_encoding: str, *details: Any, **_more: Any
    ) -> None:
        headers, properties, routing_key, _mandatory, _immediate, exchange, declare, *_rest = details
        if priority is not None:
            properties["priority"] = priority
        self.template = partial(
            Template,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=dict(headers),
            properties=dict(properties),
            exchange=exchange or "",
            routing_key=routing_key or "",
            declare=tuple(declare or ()),
            embed=dict(self.body[2]),
            serializer=self.used_serializer,
            compression=self.used_compression,
        )
        raise _Captured


def make_template(
    app: Any, task: str, args: list[Any], kwargs: Mapping[str, Any], options: dict[str, Any], *, any_task: bool
) -> Template:
    """Create the template of a task.

    Args:
        app: a Celery app; its routes, queues and the task's own options apply as in ``apply_async``.
        args, kwargs: sample values of the rows' types.
        options: options of ``apply_async``: ``queue``, ``priority``, ``eta``, ``headers``, …
        any_task: send the task by its name even if the app does not have it. This is for the default app, whose only
            tasks are the shared tasks of the libraries that this process imported.

    Raises:
        RequestError: the app has other tasks but not this one, runs tasks eagerly, or uses Celery's protocol 1; or its
            task is unique, or does not accept these arguments.
        NotSerialized: the serializer refuses a type, or there is no such serializer.
    """
    if app.conf.task_always_eager:
        raise RequestError("the app has task_always_eager, so it sends no messages: turn it off to submit tasks")
    if app.conf.task_protocol != 2:
        raise RequestError(f"the app has task_protocol {app.conf.task_protocol}; tasks can only be submitted with 2")
    app_task = None if any_task else _task_of(app, task)
    send = app.send_task if app_task is None else app_task.apply_async
    name = (task,) if app_task is None else ()
    made_at_ms = int(app.now().timestamp() * 1000)
    with app.connection_for_write() as connection:
        probe = _Probe(connection, serializer=app.conf.task_serializer)
        try:
            send(*name, args=tuple(args), kwargs=dict(kwargs), task_id=ID_MARKER, producer=probe, **options)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as exc:
            # such as Celery's comparison of the arguments with the task's signature
            text = f"task {task!r} can't be called with these arguments and options: {type(exc).__name__}: {exc}"
            raise RequestError(text, task=task) from exc
        except _Captured:
            limits = (app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize, app.conf.task_repr_maxlevels)
            template = probe.template(repr_limits=limits, made_at_ms=made_at_ms)
            if UNIQUE in template.headers:
                text = f"task {task!r} has the header {UNIQUE}, but tasks of a job can't be unique: leave out unique="
                raise RequestError(text, task=task) from None
            times = _times(template, options, None if app_task is None else app_task.expires)
            return replace(template, shown=_shown(template, args, kwargs, options), **times)
    raise RequestError(f"{task}: apply_async published nothing, so there is nothing to submit")


def _task_of(app: Any, name: str) -> Any:
    """Return the app's task of this name; None if the app does not have it but may send it.

    Libraries share tasks with every app, so an app that has only shared tasks may be one that only sends tasks.

    Raises:
        RequestError: the app does not have this task, but has its own tasks, or a task with a similar name.
    """
    if name not in app.tasks:
        try:
            app.loader.import_default_modules()
        except Exception as exc:
            log.warning("the app's task modules can't be imported here, so task %r is not checked: %s", name, exc)
            return None
    if name in app.tasks:
        return app.tasks[name]
    shared = new_plain_app().tasks  # a new app: an earlier one lacks tasks that were shared since
    app_tasks = sorted(task for task in app.tasks if task not in shared)
    similar = [task for task in app.tasks if task.endswith(f".{name}")] or get_close_matches(name, app.tasks, 1)
    if app_tasks or similar:
        hint = f"do you mean {similar[0]!r}?" if similar else f"it has {', '.join(app_tasks[:10])}."
        text = f"the app has no task {name!r}: {hint} For a task of another program, give broker_url instead of app"
        raise RequestError(text, task=name)
    return None


def _times(template: Template, options: Mapping[str, Any], usual_expires: Any) -> dict[str, Any]:
    """Return the attributes ``counted`` and ``is_dated`` of the template."""
    expires = options.get("expires", usual_expires)
    is_counted = isinstance(expires, Real)
    return {
        "counted": (("eta",) if options.get("countdown") else ()) + (("expires",) if is_counted else ()),
        "is_dated": expires is not None and not is_counted and "expiration" in template.properties,
    }


def _shown(
    template: Template, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the names of reprs that the options set, or that a receiver of ``before_task_publish`` replaced."""
    args_limit, kwargs_limit, levels = template.repr_limits
    usual = {
        "argsrepr": saferepr(tuple(args), args_limit, levels),
        "kwargsrepr": saferepr(dict(kwargs), kwargs_limit, levels),
    }
    explicit = {name for name in usual if options.get(name) is not None} | (options.get("headers") or {}).keys()
    return tuple(name for name, text in usual.items() if name in explicit or template.headers.get(name) != text)
