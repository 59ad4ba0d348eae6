"""Digest of a job's task, queue, arguments and options, which a later job with the same id must have as well.

======  ===============================================================================================================
part    content, in hexadecimal digits
======  ===============================================================================================================
1       the version of these rules
task    the task's name, or the expression of its column
queue   the queue's name, or the expression of its column
args    positional and keyword arguments: constants, and expressions of columns
rest    headers, and options of ``apply_async`` that are not times, because a time differs between two runs of a program
rows    decimal: the number of rows, those included that can't be sent
======  ===============================================================================================================

The parts are joined by ``-``. Expressions have the names that Spark gives them, which don't depend on the Python
process or on Spark Connect. Rows are not compared, because reading them takes as long as sending them.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from ...errors import PreconditionFailed, RequestError
from ...protocol.messages import JobInfo
from ..encode.plan import JobPlan

_VERSION = "1"
_DIGEST_BYTES = 5
_PARTS = ("another task", "another queue", "other arguments", "other options")
_TIMES = ("countdown", "eta", "expires")


def digest_of(plan: JobPlan) -> str:
    """Return the digest without the number of rows."""
    columns, sources = plan.columns, plan.sources

    def value(name: str | None) -> Any:
        if name in columns.constants:
            return {"constant": columns.constants[name]}
        return name and {"column": sources.get(name, name)}

    options = {name: option for name, option in plan.options.items() if name not in _TIMES}
    parts = (
        plan.task or value(columns.task),
        plan.queue or value(columns.queue),
        [[value(name) for name in columns.args], {key: value(name) for key, name in columns.kwargs.items()}],
        [
            options,
            {key: value(name) for key, name in columns.headers.items()},
            value(columns.priority),
            value(columns.task_id),
        ],
    )
    return "-".join((_VERSION, *map(_digest, parts)))


def with_rows(digest: str, rows: int) -> str:
    return f"{digest}-{rows}"


def check_same(job: JobInfo, digest: str, rows: int | None = None) -> None:
    """Check that a committed job is the same as the one with this digest; ``rows`` is its number of rows, if known.

    Raises:
        PreconditionFailed: the jobs differ; the text names how.
    """
    *known, known_rows = job.digest.split("-") if job.digest else ["", str(job.rows)]
    own = digest.split("-")
    pairs = zip(_PARTS, known[1:], own[1:], strict=True) if known[0] == own[0] else ()
    different = [part for part, its, ours in pairs if its != ours]
    if rows is not None and rows != int(known_rows):
        different.append(f"{known_rows} rows, not {rows}")
    if different:
        what = " and ".join(different)
        remedy = 'change job_id, or get that job by find_job or if_exists="return"'
        raise PreconditionFailed(f"job {job.job_id!r} was committed with {what}: {remedy}", job_id=job.job_id)


def _digest(part: Any) -> str:
    try:
        text = json.dumps(_canonical(part), sort_keys=True)
    except RecursionError as exc:
        raise RequestError("a constant is nested too deeply to be sent") from exc
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _canonical(value: Any) -> Any:
    """Return a value as JSON has it, the same in each process; of an unknown type only its name."""
    if isinstance(value, enum.Enum):
        return _canonical(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {f"{type(key).__name__} {key}": _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_canonical(item), sort_keys=True) for item in value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (bytes, bytearray)):
        return [kind, value.hex()]
    if isinstance(value, (dt.date, dt.time, dt.timedelta, Decimal, UUID)):
        return [kind, str(value)]
    return [kind]
