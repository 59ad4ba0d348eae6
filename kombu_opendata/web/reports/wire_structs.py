"""Structs of the protocol in reports: the API describes and returns them, with times in place of milliseconds."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar

from msgspec import structs
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from ...json_values import moment, with_times

T = TypeVar("T")


class WireStruct:
    """Annotation of a struct in a report, as in ``Annotated[FailureInfo, WireStruct()]``.

    The JSON object has the fields of the struct. Milliseconds since the epoch (``at_ms``) become times (``at``).
    """

    def __get_pydantic_core_schema__(self, struct: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        types: dict[str, Any] = {}
        for field in structs.fields(struct):
            is_time = field.name.endswith("at_ms")
            types[field.name.removesuffix("_ms") if is_time else field.name] = (
                datetime | None if is_time else field.type
            )
        described = handler.generate_schema(TypedDict(struct.__name__, types))  # type: ignore[operator]
        as_object = core_schema.plain_serializer_function_ser_schema(_object, return_schema=described)
        return core_schema.any_schema(serialization=as_object)


def _object(struct: Any) -> Any:
    return with_times(structs.asdict(struct))


def copied(report: type[T], source: Any, **values: Any) -> T:
    """Return a report with the fields of a source that have the same names; ``values`` are the others.

    A time (``at``) is taken from milliseconds since the epoch (``at_ms``).
    """
    for field in fields(report):  # type: ignore[arg-type]
        name = field.name
        if field.init and name not in values:
            ms = f"{name}_ms"
            values[name] = moment(getattr(source, ms)) if hasattr(source, ms) else getattr(source, name)
    return report(**values)
