"""Plan of a job: the columns that are arguments or options of the messages, and the common data of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import registry

from ...celery_integration.broker_access import load_app, plain_app
from ...errors import RequestError
from .argument_columns import is_text, sample
from .celery_template import NotSerialized, Template, make_template

#: characters of a column's expression that errors show
_SOURCE_CHARACTERS = 80

#: (task, queue); an empty queue leaves the choice to Celery
Target = tuple[str, str]


@dataclass(frozen=True)
class ColumnNames:
    """Names of the frame's columns by purpose; None if there is no such column."""

    args: tuple[str, ...] = ()  # positional arguments, in order
    kwargs: dict[str, str] = field(default_factory=dict)  # keyword → column
    task: str | None = None
    queue: str | None = None
    task_id: str | None = None
    priority: str | None = None
    eta: str | None = None
    expires: str | None = None
    headers: dict[str, str] = field(default_factory=dict)  # header → column
    #: the values of the names in ``args`` and ``kwargs`` that represent a constant instead of a column
    constants: dict[str, Any] = field(default_factory=dict)

    def used(self) -> set[str]:
        single = (self.task, self.queue, self.task_id, self.priority, self.eta, self.expires)
        named = {name for name in single if name is not None}
        return (named | {*self.args, *self.kwargs.values(), *self.headers.values()}) - self.constants.keys()


@dataclass
class JobPlan:
    """Plan of a job's tasks without the rows. Picklable: the driver creates a plan, the executors use it."""

    columns: ColumnNames  # the purpose of each column
    #: task, queue: the values for all rows, unless a column has them; an empty queue leaves the choice to Celery
    task: str = ""
    queue: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # the options of ``apply_async`` for all rows
    templates: dict[Target, Template] = field(default_factory=dict)  # the templates created so far
    app_path: str = ""  # ``module:attribute`` of the app with which executors create other templates; empty for no app
    closed: bool = False  # True if the driver has created all templates, so that another task or queue is an error
    collects_bad_rows: bool = False  # True if rows that can't be sent are left out; False if the first one is an error
    returns_existing: bool = False  # True if a job that was committed with the same id may differ from this one
    rate_limit: float = 0.0  # the number of tasks that the broker adds to queues in a second; 0 for no limit
    on_complete: JobPlan | None = None  # the plan of the task that is sent when all tasks have ended
    digest: str = ""  # see :mod:`..write.job_digest`; empty for a job that is not compared
    samples: dict[str, Any] = field(default_factory=dict)  # for each argument, a value of its column's type
    #: the caller's expression for each column, by the column's name in the written frame
    sources: dict[str, str] = field(default_factory=dict)

    def label(self, name: str) -> str:
        """Return a column or constant as shown in errors: the caller's expression, and its purpose."""
        if name in self.columns.constants:
            return name
        source = self.source(name)
        return f"column {name!r}" if source == name else f"column {source!r} ({name})"

    def source(self, name: str) -> str:
        """Return the caller's expression for a column of the written frame."""
        source = self.sources.get(name, name)
        return source if len(source) <= _SOURCE_CHARACTERS else f"{source[:_SOURCE_CHARACTERS]}…"

    def template(self, target: Target, app: Any = None) -> Template:
        """Return the template of a task for a queue; the first call creates it.

        Raises RequestError if the plan is closed and has no such template, or if the task can't be sent.
        """
        existing = self.templates.get(target)
        if existing is not None:
            return existing
        if self.closed:
            raise RequestError(f"task {target[0]!r} for queue {target[1]!r} was not in the frame when the job began")
        any_task = app is None and not self.app_path
        if app is None:
            app = load_app(self.app_path) if self.app_path else plain_app()
        options = dict(self.options)
        if target[1]:
            options["queue"] = target[1]
        columns = self.columns
        if columns.headers:
            options["headers"] = {**options.get("headers", {}), **dict.fromkeys(columns.headers)}
        samples = {**self.samples, **columns.constants}
        args = [samples.get(name) for name in columns.args]
        kwargs = {keyword: samples.get(name) for keyword, name in columns.kwargs.items()}
        try:
            template = make_template(app, target[0], args, kwargs, options, any_task=any_task)
        except NotSerialized as exc:
            raise self._named(exc) from exc
        self.templates[target] = template
        return template

    def declared(self) -> list[Any]:
        """Return Kombu's queues and exchanges that the existing templates declare, each once."""
        plans = [self] if self.on_complete is None else [self, self.on_complete]
        templates = [template for plan in plans for template in plan.templates.values()]
        return list({repr(entity): entity for template in templates for entity in template.declare}.values())

    def at(self, now_ms: int) -> JobPlan:
        """Return the plan with its templates as created at this time, ms since the epoch."""
        return replace(self, templates={target: template.at(now_ms) for target, template in self.templates.items()})

    def check_columns(self, schema: pa.Schema, refused: Mapping[str, str]) -> None:
        """Check that the columns have suitable types, and add a sample of each argument to the plan.

        Args:
            refused: the columns that can't be in an Arrow schema, with the reasons.

        Raises:
            RequestError: a column has a wrong type; the text names it.
        """
        columns = self.columns
        for name in columns.used():
            if name in refused:
                raise RequestError(f"{self.label(name)} can't be an argument: {refused[name]}", column=name)
        for names, fits, what in (
            ((columns.eta, columns.expires), pa.types.is_timestamp, "a timestamp"),
            ((columns.task, columns.queue), is_text, "a string"),
            ((columns.priority,), pa.types.is_integer, "a whole number"),
        ):
            for name in filter(None, names):
                if not fits(kind := schema.field(name).type):
                    raise RequestError(f"{self.label(name)} is {kind} and must be {what}", column=name)
        arguments = {*columns.args, *columns.kwargs.values(), *columns.headers.values()}
        for name in arguments - columns.constants.keys():
            try:
                self.samples[name] = sample(schema.field(name).type)
            except TypeError as exc:
                raise RequestError(f"{self.label(name)} can't be an argument: {exc}", column=name) from exc

    def _named(self, refused: NotSerialized) -> NotSerialized:
        """Return the error with the name of the column or constant that the serializer refuses, if it is only one."""
        serializer = refused.values["serializer"]
        constants = self.columns.constants
        for name in dict.fromkeys((*self.columns.args, *self.columns.kwargs.values())):
            try:
                registry.dumps(None, serializer)
                registry.dumps(constants.get(name, self.samples.get(name)), serializer)
            except SerializerNotInstalled:
                break
            except Exception as exc:
                text = f"{self.label(name)} can't be an argument with the serializer {serializer!r}: {exc}"
                return NotSerialized(text, column=name, serializer=serializer)
        return refused
