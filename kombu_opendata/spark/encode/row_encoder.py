"""Encoding of the rows of an Arrow batch as messages.

Except for ids, times and origin, a message has the bytes that ``apply_async`` would have published:
tests/spark/encode/test_row_encoder.py compares the two.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kombu.serialization import registry

from ...errors import InvalidMessage, MessageTooLarge, OpenDataError
from ...protocol.envelope import SPARK_JOB, encode_fields
from ...protocol.message_properties import priority_of, visible_at_ms_of
from ...staging.batch_block import MAX_TEXT_BYTES, PendingRows
from .argument_columns import required_texts, values
from .celery_template import Template
from .plan import JobPlan, Target
from .uniform_rows import UniformRows, interleave

#: limits for the rows and bytes that are encoded together
CHUNK_ROWS = 8192
CHUNK_BYTES = 4 << 20
#: limit for the name of a queue, as of AMQP's short strings
_MAX_QUEUE_BYTES = 255


class BadRow(NamedTuple):
    """Row that can't be sent.

    Attributes:
        partition, row: the number of the partition, and that of the row in it; both from 0.
        task_id: the id that the task would have had; None if the id is the reason.
        column: the caller's expression of the invalid column, with its purpose; empty if the whole row is the reason.
        value: the column's value as text.
        reason: the error, in one line.
        arguments: the values of all columns as texts, by the caller's expressions.
    """

    partition: int
    row: int
    task_id: str | None
    column: str
    value: str
    reason: str
    arguments: dict[str, str]


class RowEncoder:
    """Encoder of the messages of one partition.

    Args:
        now_ms: returns the time, ms since the epoch.
        max_bytes: with ``refuse``, the limit for the size of a message.
        refuse: is called with each row that can't be sent; by default the first one is an error.

    Attributes:
        used: the templates that rows have used so far.
    """

    def __init__(
        self, plan: JobPlan, job_id: str, partition: int, now_ms: Callable[[], int], max_bytes: int = 0,
        refuse: Callable[[BadRow], None] | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._partition, self._job_id = plan, partition, job_id
        self._prefix = partition_prefix(job_id, partition)
        self._now_ms, self._max_bytes, self._refuse = now_ms, max_bytes, refuse
        self._row = 0
        self.used: dict[Target, Template] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[PendingRows]:
        """Encode a batch in chunks, in the order of its rows.

        Raises:
            InvalidMessage: a row can't be encoded; the error's ``row`` and ``partition`` identify it.
        """
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            yield from self._encode_good(part, self._row)
            self._row += part.num_rows

    def _encode_good(self, part: pa.RecordBatch, first: int) -> Iterator[PendingRows]:
        """Encode the rows, of which the first one is number ``first``; halve them as long as one can't be encoded."""
        try:
            messages = self._encode(part, first)
            if self._refuse is not None:
                check_sizes(messages, self._max_bytes)
        except Exception as exc:
            if part.num_rows == 1:
                self._reject(part, first, exc)
                return
            half = part.num_rows // 2
            yield from self._encode_good(part.slice(0, half), first)
            yield from self._encode_good(part.slice(half), first + half)
        else:
            yield messages

    def _reject(self, alone: pa.RecordBatch, row: int, exc: Exception) -> None:
        """Report a row that can't be encoded, or raise InvalidMessage."""
        column, value, why = wrong_column(self._plan, alone) or ("", "", reason_of(exc))
        if self._refuse is None:
            reason = f"{column} is {value}: {why}" if column else why
            text = f"row {row} of partition {self._partition} can't be sent: {reason}"
            raise InvalidMessage(text, row=row, partition=self._partition, reason=reason) from exc
        own = self._plan.columns.task_id
        is_wrong_id = own is not None and column == self._plan.label(own)
        id = f"{self._prefix}{row:012x}" if own is None else None if is_wrong_id else alone.column(own)[0].as_py()
        arguments = {self._plan.source(name): _shown(alone.column(name)) for name in alone.schema.names}
        self._refuse(BadRow(self._partition, row, id, column, value, why, arguments))

    def _encode(self, batch: pa.RecordBatch, first: int) -> PendingRows:
        column = self._plan.columns.task_id
        ids = row_ids(self._prefix, first, batch.num_rows) if column is None else required_texts(batch, column)
        groups = self._groups(batch)
        if len(groups) == 1:
            (key,) = groups
            return self._encode_group(batch, ids, *key)
        parts = []
        for key, rows in groups.items():
            numbers = pa.array(rows)
            parts.append((rows, self._encode_group(batch.take(numbers), ids.take(numbers), *key)))
        return interleave(parts, batch.num_rows)

    def _encode_group(self, batch: pa.RecordBatch, ids: pa.Array, target: Target, expires: bool) -> PendingRows:
        template = self._plan.template(target)
        self.used[target] = template
        template = replace(template, headers={**template.headers, SPARK_JOB: self._job_id})
        return UniformRows(self._plan.columns, template, batch, ids, expires, self._now_ms()).messages()

    def _groups(self, batch: pa.RecordBatch) -> dict[tuple[Target, bool], list[int]]:
        """Return the numbers of the rows by template, and by the presence of an ``expires``."""
        columns, plan = self._plan.columns, self._plan
        varying = (columns.task, columns.queue, columns.expires)
        if not any(varying):
            return {((plan.task, plan.queue), False): []}
        rows = batch.num_rows
        expire = [True] * rows if columns.expires is None else batch.column(columns.expires).is_valid().to_pylist()
        groups: dict[tuple[Target, bool], list[int]] = {}
        for row, key in enumerate(zip(_targets(plan, batch), expire, strict=True)):
            groups.setdefault(key, []).append(row)
        return groups


#: limits for the characters of a value and of its error that are shown
_SHOWN_CHARACTERS = 100
_REASON_CHARACTERS = 300

Check = Callable[[pa.Array], object]


def wrong_column(plan: JobPlan, row: pa.RecordBatch) -> tuple[str, str, str] | None:
    """Return the invalid column of this row, its value and the reason; None if all columns are valid."""
    for name, check in _checks(plan, row):
        column = row.column(name)
        try:
            check(column)
        except Exception as exc:
            return plan.label(name), _shown(column), reason_of(exc)
    return None


def check_sizes(messages: PendingRows, max_bytes: int) -> None:
    """Raise MessageTooLarge or InvalidMessage if a batch would refuse one of the messages."""
    size = max(map(len, messages.envelopes))
    if size > max_bytes:
        text = f"the message has {size} bytes and the broker's limit is {max_bytes}"
        raise MessageTooLarge(text, size=size, limit=max_bytes)
    for name, column in messages.headers.items():
        for text in column if isinstance(column, list) else (column,):
            if text and 4 * len(text) > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
                raise InvalidMessage(f"the header {name!r} has over {MAX_TEXT_BYTES} bytes")


def reason_of(exc: Exception) -> str:
    return _cut(exc.text if isinstance(exc, OpenDataError) else f"{type(exc).__name__}: {exc}", _REASON_CHARACTERS)


def _checks(plan: JobPlan, row: pa.RecordBatch) -> Iterator[tuple[str, Check]]:
    """Yield each column with a function that raises an error if its value is invalid."""
    columns = plan.columns
    if columns.queue is not None:
        yield columns.queue, lambda _column, name=columns.queue: _queues(row, name)  # type: ignore[misc]
    for name in filter(None, (columns.task, columns.task_id)):
        yield name, lambda _column, name=name: required_texts(row, name)  # type: ignore[misc]
    for name in filter(None, (columns.eta, columns.expires)):
        yield name, values
    if columns.priority is not None:
        yield columns.priority, lambda column: priority_of(values(column)[0])
    for header, name in columns.headers.items():
        yield name, _check_eta if header == "eta" else lambda column: encode_fields(values(column)[0])
    for name in dict.fromkeys((*columns.args, *columns.kwargs.values())):
        if name not in columns.constants:
            yield (
                name,
                lambda column: registry.dumps(values(column)[0], plan.template(_targets(plan, row)[0]).serializer),
            )


def _queues(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column's names of queues; raise InvalidMessage if a row has none, or one that is too long."""
    queues = required_texts(batch, name)
    longest = pc.max(pc.binary_length(queues)).as_py()
    if longest > _MAX_QUEUE_BYTES:
        raise InvalidMessage(f"the queue name has {longest} bytes, the limit is {_MAX_QUEUE_BYTES}", column=name)
    return queues


def _check_eta(column: pa.Array) -> None:
    visible_at_ms_of({"task": "", "eta": values(column)[0]})


def _targets(plan: JobPlan, batch: pa.RecordBatch) -> list[Target]:
    """Return task and queue of each row."""
    columns, rows = plan.columns, batch.num_rows
    tasks = [plan.task] * rows if columns.task is None else required_texts(batch, columns.task).to_pylist()
    queues = [plan.queue] * rows if columns.queue is None else _queues(batch, columns.queue).to_pylist()
    return list(zip(tasks, queues, strict=True))


def _shown(column: pa.Array) -> str:
    if not column.is_valid()[0].as_py():
        return "null"
    try:
        text = repr(values(column)[0])
    except Exception:  # a time that Python can't express, or a text that is not UTF-8
        text = column.to_string(indent=0, skip_new_lines=True)[1:-1]
    return _cut(text, _SHOWN_CHARACTERS)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"


ROW_BYTES = 6
#: an arbitrary constant, from which the ids of tasks are derived
_NAMESPACE = uuid.UUID("9f1a6f0e-6c0b-5b52-8c8f-0f3c53a1d7c4")


def partition_prefix(job_id: str, partition: int) -> str:
    """Return the first 24 characters of every id of a partition."""
    digest = hashlib.sha1(_NAMESPACE.bytes + partition.to_bytes(8, "big") + job_id.encode()).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-"


def task_id(job_id: str, partition: int, row: int) -> str:
    return f"{partition_prefix(job_id, partition)}{row:012x}"


def row_ids(prefix: str, first: int, rows: int) -> pa.Array:
    """Return the ids of consecutive rows of a partition, as a column of texts."""
    numbers = np.arange(first, first + rows, dtype=">u8").view(np.uint8).reshape(-1, 8)
    digits = numbers[:, 8 - ROW_BYTES :].tobytes().hex().encode()
    offsets = pa.array(np.arange(0, len(digits) + 1, 2 * ROW_BYTES, dtype=np.int32))
    column = pa.StringArray.from_buffers(rows, offsets.buffers()[1], pa.py_buffer(digits))
    return pc.binary_join_element_wise(prefix, column, "")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
