"""Options of ``df.write.format("opendata")``, parsed from Spark's texts to a plan.

They are the arguments of :func:`kombu_opendata.spark.submit_tasks` as texts:

* ``broker_url`` or ``app``, and ``job_id``, ``bad_rows``, ``if_exists``, ``rate_limit``: as there. An app is
  ``module:attribute``. For a stream, ``job_id`` is a prefix of the jobs' ids.
* ``task``, ``queue``, or as columns ``task_column``, ``queue_column``; ``on_complete``, the name of a task.
* ``task_id_column``, ``priority_column``, ``eta_column``, ``expires_column``: names of columns.
* ``args``: names of columns, separated by commas or in a JSON array. ``kwargs``: likewise, or a JSON object of keyword
  → column. Without both, each column that no other option names is a keyword argument.
* ``header_columns``: a JSON object of header → column.
* ``options``, ``properties``, ``transport_options``: JSON objects of further options of ``apply_async`` (those of
  :data:`.task_arguments.APPLY_OPTIONS`), AMQP properties, and Celery's ``broker_transport_options``.
* ``bucket_endpoint`` and the other options of the bucket: as for reading.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import cloudpickle
import pyarrow as pa

from ...celery_integration.broker_access import BrokerAccess, access_of
from ...errors import RequestError
from ..encode.plan import ColumnNames, JobPlan
from ..option_text import BUCKET, bucket_settings_of, check_column, check_known, json_of, names_of
from .completion import completion_plan
from .job_digest import digest_of
from .task_arguments import check_options, check_properties, job_settings

#: possible contents of a column, each with an option
_COLUMNS = ("task", "queue", "task_id", "priority", "eta", "expires")
_KNOWN = frozenset((
    "broker_url", "app", "job_id", "task", "args", "kwargs", "queue", "header_columns", "options", "properties",
    "bad_rows", "if_exists", "on_complete", "rate_limit", "transport_options",
    *(f"{name}_column" for name in _COLUMNS),
))  # fmt: skip
#: options that ``submit_tasks`` and ``stream_tasks`` set; the plan replaces the others
_PLANNED = frozenset(("broker_url", "job_id", "plan", "report"))
#: Spark's own options, which every source receives
_SPARKS = frozenset(("checkpointlocation", "outputmode", "queryname"))


def pack_plan(plan: JobPlan, access: BrokerAccess) -> str:
    """Return a plan as the text of an option, without the broker's URL and secrets, as Spark's UI shows options.

    The constants of a plan may be of classes that only the driver's program has.
    """
    return base64.b64encode(
        cloudpickle.dumps((plan, replace(access, url="opendata+memory://none", bucket={})))
    ).decode()


def parse_write_options(
    options: Mapping[str, str], schema: pa.Schema, refused: Mapping[str, str]
) -> tuple[JobPlan, BrokerAccess]:
    """Return the plan for a frame with this schema, and its broker; ``refused``: see :meth:`.JobPlan.check_columns`.

    Raises:
        RequestError: an option is unknown or missing, contradicts another, or names a column that is missing.
    """
    texts = {name.lower(): value for name, value in dict(options).items()}
    if "path" in texts:
        raise RequestError(
            f"tasks go to a broker, not to the path {texts['path']!r}: write save() or start() without it, and the "
            "option broker_url",
            option="path",
        )
    known = (_PLANNED if "plan" in texts else _KNOWN) | BUCKET.keys()
    for name in sorted(texts.keys() - known - _SPARKS):
        if name in _KNOWN:
            raise RequestError(f"the option {name} has no effect here: give it to the call as an argument", option=name)
        check_known(name, _KNOWN | BUCKET.keys())
    if texts.get("job_id") == "":
        raise RequestError("the option job_id is empty: name the job, or leave the option out", option="job_id")
    if "plan" in texts:
        plan, access = pickle.loads(base64.b64decode(texts["plan"]))
        access = replace(access, url=texts["broker_url"])
    else:
        plan = _plan(texts, [*schema.names, *refused])
        access = access_of(texts.get("broker_url"), texts.get("app"), _json_object(texts, "transport_options"))
    plan.check_columns(schema, refused)
    return plan, replace(access, bucket=bucket_settings_of(texts))


def _plan(texts: Mapping[str, str], names: list[str]) -> JobPlan:
    for name in ("task", "queue"):
        if name in texts and f"{name}_column" in texts:
            raise RequestError(f"{name} and {name}_column are given: choose one", option=name)
    if "task" not in texts and "task_column" not in texts:
        raise RequestError("name the task: the option task, or task_column", option="task")
    single: dict[str, Any] = {name: texts.get(f"{name}_column") for name in _COLUMNS}
    columns = ColumnNames(headers=_json_names(texts, "header_columns"), **single)
    if "args" in texts or "kwargs" in texts:
        columns = replace(columns, args=names_of(texts.get("args", ""), "args"), kwargs=_keywords(texts))
    else:
        rest = [name for name in names if name not in columns.used()]
        columns = replace(columns, kwargs=dict(zip(rest, rest, strict=True)))
    for name in columns.used():
        check_column(name, names)
    options, properties = _json_object(texts, "options"), _json_object(texts, "properties")
    check_options(options)
    check_properties(properties)
    options |= properties
    app_path = texts.get("app", "")
    given: dict[str, Any] = {name: texts[name] for name in ("bad_rows", "if_exists") if name in texts}
    if "rate_limit" in texts:
        given["rate_limit"] = json_of(texts["rate_limit"], "rate_limit", float, "a number")
    settings = job_settings(**given)
    completion = completion_plan(texts.get("on_complete"), None, app_path)
    task, queue = texts.get("task", ""), texts.get("queue", "")
    plan = JobPlan(columns, task, queue, options, app_path=app_path, on_complete=completion, **settings)
    plan.digest = digest_of(plan)
    return plan


def _keywords(texts: Mapping[str, str]) -> dict[str, str]:
    text = texts.get("kwargs", "")
    if text.lstrip().startswith("{"):
        return _json_names(texts, "kwargs")
    return {name: name for name in names_of(text, "kwargs")}


def _json_names(texts: Mapping[str, str], name: str) -> dict[str, str]:
    return json_of(texts.get(name, "{}"), name, dict[str, str], "a JSON object that maps names to columns")


def _json_object(texts: Mapping[str, str], name: str) -> dict[str, Any]:
    return json_of(texts.get(name, "{}"), name, dict[str, Any], "a JSON object")
