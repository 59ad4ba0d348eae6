"""Checks of a frame's columns against a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pyarrow as pa

from ...errors import RequestError
from ..encode.argument_columns import is_text, sample
from ..encode.plan import Plan


def check_columns(plan: Plan, schema: pa.Schema, refused: Mapping[str, str] = MappingProxyType({})) -> None:
    """Check that the plan's columns exist and have types that fit. Adds a sample of each argument to the plan.

    Args:
        refused: columns that can't be in an Arrow schema, and why.

    Raises:
        RequestError: a column is missing or has a wrong type; the text names it.
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
        try:
            plan.samples[name] = sample(schema.field(name).type)
        except TypeError as exc:
            raise RequestError(f"{plan.label(name)} can't be an argument: {exc}", column=name) from exc


def _require(plan: Plan, schema: pa.Schema, name: str | None, fits: Callable[[pa.DataType], bool], what: str) -> None:
    if name is not None and not fits(schema.field(name).type):
        raise RequestError(f"{plan.label(name)} is {schema.field(name).type} and must be {what}", column=name)
