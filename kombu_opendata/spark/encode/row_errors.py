"""Description of a row that can't be sent, for error messages: the column, its value and the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from kombu.serialization import registry

from ...errors import OpenDataError
from ...protocol.envelope import encode_fields
from ...protocol.message_properties import priority_of, visible_at_ms_of
from .argument_columns import required_texts, values
from .plan import JobPlan

#: limits for the characters of a value and of its error that are shown
_SHOWN_CHARACTERS = 100
_REASON_CHARACTERS = 300

Check = Callable[[pa.Array], object]


def wrong_column(plan: JobPlan, row: pa.RecordBatch) -> str:
    """Return the invalid column of this row, its value and the reason; empty if all columns are valid."""
    for name, check in _checks(plan, row):
        column = row.column(name)
        try:
            check(column)
        except Exception as exc:
            return f"{plan.label(name)} is {_shown(column)}: {reason_of(exc)}"
    return ""


def reason_of(exc: Exception) -> str:
    """Return the text of an error."""
    return _cut(exc.text if isinstance(exc, OpenDataError) else f"{type(exc).__name__}: {exc}", _REASON_CHARACTERS)


def _checks(plan: JobPlan, row: pa.RecordBatch) -> Iterator[tuple[str, Check]]:
    """Yield each column with a function that raises an error if its value is invalid."""
    columns = plan.columns
    for name in filter(None, (columns.task, columns.queue, columns.task_id)):
        yield name, lambda _column, name=name: required_texts(row, name)  # type: ignore[misc]
    for name in filter(None, (columns.eta, columns.expires)):
        yield name, values
    if columns.priority is not None:
        yield columns.priority, lambda column: priority_of(values(column)[0])
    for header, name in columns.headers.items():
        yield name, _check_eta if header == "eta" else lambda column: encode_fields(values(column)[0])
    for name in dict.fromkeys((*columns.args, *columns.kwargs.values())):
        if name not in columns.constants:
            yield name, lambda column: registry.dumps(values(column)[0], _serializer(plan, row))


def _check_eta(column: pa.Array) -> None:
    visible_at_ms_of({"task": "", "eta": values(column)[0]})


def _serializer(plan: JobPlan, row: pa.RecordBatch) -> str:
    columns = plan.columns
    task = plan.task if columns.task is None else required_texts(row, columns.task)[0].as_py()
    queue = plan.queue if columns.queue is None else required_texts(row, columns.queue)[0].as_py()
    return plan.template((task, queue)).serializer


def _shown(column: pa.Array) -> str:
    if not column.is_valid()[0].as_py():
        return "null"
    try:
        text = repr(values(column)[0])
    except Exception:  # a time that Python can't express
        text = str(column.cast(pa.string())[0])
    return _cut(text, _SHOWN_CHARACTERS)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"
