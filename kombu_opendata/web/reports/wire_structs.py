"""Structs of the protocol and models of the client in reports, as the API describes and returns them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from ...json_values import moment

T = TypeVar("T")


class WireStruct:
    """Annotation of a struct or model in a report, as in ``Annotated[FailureInfo, WireStruct()]``.

    The JSON object has its fields, and those of structs in them. Milliseconds since the epoch (``at_ms``) become times
    (``at``).
    """

    def __get_pydantic_core_schema__(self, struct: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        hints = get_type_hints(struct, include_extras=True)
        names = getattr(struct, "__struct_fields__", None) or [field.name for field in fields(struct)]
        keys = {name: re.sub("(?<=at)_ms$", "", name) for name in names}

        def as_object(value: Any) -> dict[str, Any]:
            return {key: _value(value, name) for name, key in keys.items()}

        types = {key: _described(hints[name]) if name == key else datetime | None for name, key in keys.items()}
        described: Any = TypedDict(struct.__name__, types)  # type: ignore[misc]
        described.__doc__ = struct.__doc__
        schema = handler.generate_schema(described)
        serializer = core_schema.plain_serializer_function_ser_schema(as_object, return_schema=schema)
        return core_schema.any_schema(serialization=serializer)


def _described(hint: Any) -> Any:
    """Return a type in which each struct is annotated, too."""
    if hasattr(hint, "__struct_fields__"):
        return Annotated[hint, WireStruct()]
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        return dict.__class_getitem__((key, _described(value)))
    return hint


def _value(source: Any, name: str) -> Any:
    value = getattr(source, name)
    return moment(value) if name.endswith("at_ms") else value


def copied(report: type[T], source: Any, **values: Any) -> T:
    """Return a report whose fields are those of a source (object or mapping) with the same names, or ``values``.

    A time (``at``) may be milliseconds since the epoch (``at_ms``) in the source.
    """
    if isinstance(source, Mapping):
        source = SimpleNamespace(**source)
    for field in fields(report):  # type: ignore[arg-type]
        name = field.name
        if field.init and name not in values:
            values[name] = _value(source, f"{name}_ms" if hasattr(source, f"{name}_ms") else name)
    return report(**values)
