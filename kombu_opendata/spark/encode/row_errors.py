"""Which column of a row can't be sent, and what it holds: for the text of an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from kombu.serialization import registry

from ...errors import OpenDataError
from ...transport.publish_request import priority_of, visible_at_ms_of
from . import envelope_template
from .argument_columns import values
from .plan import Plan
from .uniform_rows import texts

#: of a value that is shown, and of what is said about it
_SHOWN_CHARACTERS = 100
_REASON_CHARACTERS = 300

Check = Callable[[pa.Array], object]


def wrong_column(plan: Plan, row: pa.RecordBatch) -> str:
    """The column of this one row that is wrong, its value, and what is wrong with it; empty where no column is."""
    for name, check in _checks(plan, row):
        column = row.column(row.schema.get_field_index(name))
        try:
            check(column)
        except Exception as exc:
            return f"{plan.label(name)} is {_shown(column)}: {reason_of(exc)}"
    return ""


def reason_of(exc: Exception) -> str:
    """What an error says."""
    return _cut(exc.text if isinstance(exc, OpenDataError) else f"{type(exc).__name__}: {exc}", _REASON_CHARACTERS)


def _checks(plan: Plan, row: pa.RecordBatch) -> Iterator[tuple[str, Check]]:
    """Each column, with what raises an error if it is wrong."""
    columns = plan.columns
    for name in filter(None, (columns.task, columns.queue, columns.task_id)):
        yield name, lambda _column, name=name: texts(row, name)  # type: ignore[misc]
    for name in filter(None, (columns.eta, columns.expires)):
        yield name, values
    if columns.priority is not None:
        yield columns.priority, _check_priority
    for header, name in columns.headers.items():
        yield name, _check_eta if header == "eta" else lambda column: envelope_template.encode(values(column)[0])
    for name in dict.fromkeys((*columns.args, *columns.kwargs.values())):
        if name not in columns.constants:
            yield name, lambda column: registry.dumps(values(column)[0], _serializer(plan, row))


def _check_priority(column: pa.Array) -> None:
    (given,) = values(column)
    if given is not None:
        priority_of(given)


def _check_eta(column: pa.Array) -> None:
    visible_at_ms_of({"task": "", "eta": values(column)[0]})


def _serializer(plan: Plan, row: pa.RecordBatch) -> str:
    columns = plan.columns
    task = plan.task if columns.task is None else texts(row, columns.task)[0].as_py()
    queue = plan.queue if columns.queue is None else texts(row, columns.queue)[0].as_py()
    return plan.template((task, queue)).serializer


def _shown(column: pa.Array) -> str:
    if not column.is_valid()[0].as_py():
        return "null"
    try:
        text = repr(values(column)[0])
    except Exception:  # a time that Python does not have
        text = str(column.cast(pa.string())[0])
    return _cut(text, _SHOWN_CHARACTERS)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"
