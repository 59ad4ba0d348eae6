"""Task that the broker sends when all tasks of a job have ended: the argument ``on_complete``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...protocol.job_completion import JOB_ARGUMENT, completion_task
from ..encode.plan import ColumnNames, JobPlan
from ..encode.row_encoder import RowEncoder
from ..option_text import check_option
from .task_arguments import check_options

#: the number of a partition that no job has: the task's id follows from it and from the job id
_PARTITION = 1 << 32
_ROW = pa.record_batch([pa.nulls(1)], ["none"])


def completion_plan(on_complete: Any, app: Any, app_path: str) -> JobPlan | None:
    """Return the plan of the task: its name, or a signature of Celery; None if there is none.

    The broker adds the keyword argument ``job``.

    Raises:
        RequestError: the value is neither, or the task can't be sent.
        InvalidMessage: the task's serializer is neither JSON nor MessagePack.
    """
    if on_complete is None:
        return None
    signature: Any = {"task": on_complete} if isinstance(on_complete, str) else on_complete
    is_task = isinstance(signature, Mapping) and isinstance(signature.get("task"), str) and signature["task"]
    is_task = is_task and not signature.get("subtask_type")  # which a chain or group has
    check_option("on_complete", on_complete, is_task, "a task's name, or the signature of one task")
    options = {name: value for name, value in (signature.get("options") or {}).items() if name != "task_id"}
    check_options(options)
    args = {f"args[{at}]": value for at, value in enumerate(signature.get("args") or ())}
    kwargs = dict(signature.get("kwargs") or {}) | {JOB_ARGUMENT: {}}
    names = {key: f"kwargs[{key}]" for key in kwargs}
    constants = args | {names[key]: value for key, value in kwargs.items()}
    columns = ColumnNames(args=tuple(args), kwargs=names, constants=constants)
    plan = JobPlan(columns, signature["task"], str(options.pop("queue", "")), options, app_path=app_path)
    plan.template((plan.task, plan.queue), app)
    completion_task(completion_envelope(plan, "job", 0), {}, 0)
    return plan


def completion_envelope(plan: JobPlan, job_id: str, now_ms: int) -> bytes:
    (messages,) = RowEncoder(plan, job_id, _PARTITION, lambda: now_ms).encode(_ROW)
    return messages.envelopes[0]
