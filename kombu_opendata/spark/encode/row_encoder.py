"""Encoding of the rows of an Arrow batch as messages.

Except for ids, times and origin, a message has the bytes that ``apply_async`` would have published:
tests/spark/encode/test_row_encoder.py compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from ...errors import InvalidMessage
from .argument_columns import required_texts
from .celery_template import Template
from .message_columns import Messages, interleave
from .plan import JobPlan, Target
from .row_errors import reason_of, wrong_column
from .task_ids import partition_prefix, row_ids
from .uniform_rows import UniformRows

#: limits for the rows and bytes that are encoded together
CHUNK_ROWS = 8192
CHUNK_BYTES = 4 << 20


class RowEncoder:
    """Encoder of the messages of one partition.

    Args:
        now_ms: returns the time, ms since the epoch.

    Attributes:
        used: the templates that rows have used so far.
    """

    def __init__(self, plan: JobPlan, job_id: str, partition: int, now_ms: Callable[[], int]) -> None:
        self._plan = plan
        self._partition = partition
        self._prefix = partition_prefix(job_id, partition)
        self._now_ms = now_ms
        self._row = 0
        self.used: dict[Target, Template] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[Messages]:
        """Encode a batch in chunks, in the order of its rows.

        Raises:
            InvalidMessage: a row can't be encoded; the error's ``row`` and ``partition`` identify it.
        """
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            try:
                messages = self._encode(part, self._row)
            except Exception as exc:
                raise self._located(part, exc) from exc
            self._row += part.num_rows
            yield messages

    def _located(self, part: pa.RecordBatch, exc: Exception) -> InvalidMessage:
        """Return an error that names the first row that can't be encoded."""
        row = self._row
        for number in range(part.num_rows):
            try:
                self._encode(part.slice(number, 1), self._row + number)
            except Exception as own:
                row, exc = self._row + number, own
                break
        alone = part.slice(row - self._row, 1)
        reason = wrong_column(self._plan, alone) or reason_of(exc)
        text = f"row {row} of partition {self._partition} can't be sent: {reason}"
        return InvalidMessage(text, row=row, partition=self._partition, reason=reason)

    # ---- several tasks or queues in one batch
    def _encode(self, batch: pa.RecordBatch, first: int) -> Messages:
        ids = self._ids(batch, first)
        groups = self._groups(batch)
        if len(groups) == 1:
            (key,) = groups
            return self._encode_group(batch, ids, *key)
        parts = []
        for key, rows in groups.items():
            numbers = pa.array(rows)
            parts.append((rows, self._encode_group(batch.take(numbers), ids.take(numbers), *key)))
        return interleave(parts, batch.num_rows)

    def _encode_group(self, batch: pa.RecordBatch, ids: pa.Array, target: Target, expires: bool) -> Messages:
        template = self._plan.template(target)
        self.used[target] = template
        return UniformRows(self._plan.columns, template, batch, ids, expires, self._now_ms()).messages()

    def _groups(self, batch: pa.RecordBatch) -> dict[tuple[Target, bool], list[int]]:
        """Return the numbers of the rows by template, and by the presence of an ``expires``."""
        columns, plan = self._plan.columns, self._plan
        varying = (columns.task, columns.queue, columns.expires)
        if not any(varying):
            return {((plan.task, plan.queue), False): []}
        rows = batch.num_rows
        tasks = [plan.task] * rows if columns.task is None else required_texts(batch, columns.task).to_pylist()
        queues = [plan.queue] * rows if columns.queue is None else required_texts(batch, columns.queue).to_pylist()
        expire = [True] * rows if columns.expires is None else batch.column(columns.expires).is_valid().to_pylist()
        groups: dict[tuple[Target, bool], list[int]] = {}
        for row, (task, queue, expires) in enumerate(zip(tasks, queues, expire, strict=True)):
            groups.setdefault(((task, queue), expires), []).append(row)
        return groups

    def _ids(self, batch: pa.RecordBatch, first: int) -> pa.Array:
        name = self._plan.columns.task_id
        return row_ids(self._prefix, first, batch.num_rows) if name is None else required_texts(batch, name)
