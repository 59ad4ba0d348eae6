"""The options of ``df.write.format("opendata")``: texts, as Spark has them, to a plan.

=====================  ================================================================================================
option                 meaning
=====================  ================================================================================================
``broker_url``         the broker; not with ``app``
``app``                ``module:attribute`` of a Celery app that driver and executors can import
``job_id``             the same id again adds nothing; random when not given. Streams: goes before the query's id
``task``               the task's name; or ``task_column``
``args``               columns for positional arguments: names with commas between, or a JSON array
``kwargs``             columns for keyword arguments: likewise, or a JSON object of keyword → column. Without ``args``
                       and ``kwargs`` each column that no other option names is a keyword argument
``queue``              the queue, or ``queue_column``; without either Celery's routing decides
``task_id_column``     the tasks' ids; without it they follow from job id, partition and row
``priority_column``    0 to 255, higher first; null is as the task has it
``eta_column``         a timestamp; null is at once
``expires_column``     a timestamp; null is never
``header_columns``     JSON object of header → column
``options``            JSON object of further options of ``apply_async``: ``priority``, ``countdown``, ``expires``,
                       ``serializer``, ``compression``, ``exchange``, ``routing_key``, ``headers``, …
``transport_options``  JSON object, as Celery's ``broker_transport_options``
=====================  ================================================================================================
"""

from __future__ import annotations

import base64
import pickle
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import cloudpickle
import pyarrow as pa

from ...errors import RequestError
from ..broker_access import BrokerAccess
from ..celery_app import load_app
from ..encode.argument_columns import is_text, sample
from ..encode.plan import Columns, Plan
from ..option_text import json_of, names_of
from .argument_checks import check_options

_KNOWN = frozenset(
    [
        "broker_url",
        "app",
        "job_id",
        "task",
        "task_column",
        "args",
        "kwargs",
        "queue",
        "queue_column",
        "task_id_column",
        "priority_column",
        "eta_column",
        "expires_column",
        "header_columns",
        "options",
        "transport_options",
        "plan",
        "report",
    ]
)
#: Spark's own, which every source is given
_SPARKS = frozenset(("checkpointlocation", "outputmode", "queryname"))
#: ways to give one thing
_SINGLE = ("task", "queue")


@dataclass(frozen=True)
class WriteOptions:
    """What the options say."""

    plan: Plan
    access: BrokerAccess
    job_id: str
    report: str = ""


def pack_plan(plan: Plan, access: BrokerAccess) -> str:
    """A plan as an option's text; the broker's URL is not in it, as Spark shows options.

    Values of classes that only the driver's program has can be in it.
    """
    return base64.b64encode(cloudpickle.dumps((plan, replace(access, url="opendata+memory://none")))).decode()


def parse_write_options(
    options: Mapping[str, str], schema: pa.Schema, refused: Mapping[str, str] = MappingProxyType({})
) -> WriteOptions:
    """The plan of a frame with this schema; ``refused`` as for :func:`check_columns`.

    Raises:
        RequestError: an option that is unknown, missing, contradicts another, or names no column.
    """
    given = {name.lower(): value for name, value in dict(options).items()}
    if "path" in given:
        raise RequestError(
            f"tasks go to a broker, not to the path {given['path']!r}: write save() or start() without it, and the "
            "option broker_url",
            option="path",
        )
    unknown = sorted(given.keys() - _KNOWN - _SPARKS)
    if unknown:
        raise RequestError(f"unknown option {unknown[0]!r}: choose from {', '.join(sorted(_KNOWN))}", option=unknown[0])
    if "plan" in given:
        plan, access = pickle.loads(base64.b64decode(given["plan"]))
        access = replace(access, url=given["broker_url"])
    else:
        plan, access = _plan(given, [*schema.names, *refused]), _access(given)
    check_columns(plan, schema, refused)
    return WriteOptions(plan, access, given.get("job_id", ""), given.get("report", ""))


def new_job_id() -> str:
    """A job id that no other job has."""
    return str(uuid.uuid4())


def _access(given: Mapping[str, str]) -> BrokerAccess:
    if ("app" in given) == ("broker_url" in given):
        raise RequestError("name the broker: either the option broker_url or the option app")
    if "app" in given:
        return BrokerAccess.of_app(load_app(given["app"]))
    return BrokerAccess(given["broker_url"], _json_object(given, "transport_options"))


def _plan(given: Mapping[str, str], names: list[str]) -> Plan:
    for name in _SINGLE:
        if name in given and f"{name}_column" in given:
            raise RequestError(f"{name} and {name}_column are given: choose one", option=name)
    if "task" not in given and "task_column" not in given:
        raise RequestError("name the task: the option task, or task_column", option="task")
    columns = Columns(
        task=given.get("task_column"),
        queue=given.get("queue_column"),
        task_id=given.get("task_id_column"),
        priority=given.get("priority_column"),
        eta=given.get("eta_column"),
        expires=given.get("expires_column"),
        headers=_json_names(given, "header_columns"),
    )
    if "args" in given or "kwargs" in given:
        columns = replace(
            columns, args=names_of(given.get("args", ""), "args"), kwargs=_keywords(given.get("kwargs", ""))
        )
    else:
        rest = [name for name in names if name not in columns.used()]
        columns = replace(columns, kwargs=dict(zip(rest, rest, strict=True)))
    options = _json_object(given, "options")
    check_options(options)
    return Plan(
        columns,
        task=given.get("task", ""),
        queue=given.get("queue", ""),
        options=options,
        app_path=given.get("app", ""),
    )


def _keywords(text: str) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        return _json_names({"kwargs": text}, "kwargs")
    return {name: name for name in names_of(text, "kwargs")}


def _json_names(given: Mapping[str, str], name: str) -> dict[str, str]:
    found = _json_object(given, name)
    if not all(isinstance(column, str) for column in found.values()):
        raise RequestError(f"the option {name} is no JSON object of names and columns", option=name)
    return found


def _json_object(given: Mapping[str, str], name: str) -> dict[str, Any]:
    if name not in given:
        return {}
    found = json_of(given[name], name)
    if not isinstance(found, dict):
        raise RequestError(f"the option {name} is no JSON object", option=name)
    return found


# ---- columns
def check_columns(plan: Plan, schema: pa.Schema, refused: Mapping[str, str] = MappingProxyType({})) -> None:
    """See that the columns are there and have types that fit, and note a sample of each argument.

    Args:
        refused: columns that can't be in the schema, and why.

    Raises:
        RequestError: the text names the column.
    """
    columns = plan.columns
    for name in columns.used():
        if name in refused:
            raise RequestError(f"{plan.label(name)} can't be an argument: {refused[name]}", column=name)
        if schema.get_field_index(name) < 0:
            raise RequestError(f"there is no column {name!r}: the frame has {', '.join(schema.names)}", column=name)
    for time_column in (columns.eta, columns.expires):
        _require(plan, schema, time_column, pa.types.is_timestamp, "a timestamp")
    for text_column in (columns.task, columns.queue):
        _require(plan, schema, text_column, is_text, "a string")
    _require(plan, schema, columns.priority, pa.types.is_integer, "a whole number")
    arguments = {*columns.args, *columns.kwargs.values(), *columns.headers.values()}
    for name in arguments - columns.constants.keys():
        kind = schema.field(name).type
        try:
            plan.samples[name] = sample(kind)
        except TypeError as exc:
            raise RequestError(f"{plan.label(name)} can't be an argument: {exc}", column=name) from exc


def _require(plan: Plan, schema: pa.Schema, name: str | None, fits: Any, what: str) -> None:
    if name is not None and not fits(schema.field(name).type):
        raise RequestError(f"{plan.label(name)} is {schema.field(name).type} and must be {what}", column=name)
