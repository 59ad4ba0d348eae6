"""Spark's schemas as Arrow's, with an error that names the column where there is no such thing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    VariantType,
)


def arrow_schema(schema: Any) -> tuple[pa.Schema, dict[str, str]]:
    """The schema as Arrow has it, and why columns are not in it, by name.

    Variants and user-defined types would come as what they are stored as, so they are left out, too.
    """
    fields, refused = [], {}
    for field in schema.fields:
        why = _why_not(field.dataType)
        if why is None:
            try:
                (found,) = to_arrow_schema(StructType([StructField(field.name, field.dataType)]), timezone="UTC")
                fields.append(found)
                continue
            except (PySparkException, ValueError) as exc:  # ValueError: Arrow has no such type
                why = f"{field.dataType.simpleString()}: {exc}"
        refused[field.name] = why
    return pa.schema(fields), refused


def without_void(kind: DataType) -> DataType:
    """The type with string where an array, map or struct has void, which Arrow can't always express. As void has no
    value but null, what is cast to it stays the same.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(_no_void(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_no_void(kind.keyType), _no_void(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = [
            StructField(field.name, _no_void(field.dataType), field.nullable, field.metadata) for field in kind.fields
        ]
        return StructType(fields)
    return kind


def _no_void(kind: DataType) -> DataType:
    return StringType() if isinstance(kind, NullType) else without_void(kind)


def _why_not(kind: DataType) -> str | None:
    if isinstance(kind, (VariantType, UserDefinedType)):
        return f"{kind.simpleString()} has no Python value that every worker knows"
    if isinstance(kind, ArrayType):
        return _why_not(kind.elementType)
    if isinstance(kind, MapType):
        return _why_not(kind.keyType) or _why_not(kind.valueType)
    if isinstance(kind, StructType):
        return next((why for field in kind.fields if (why := _why_not(field.dataType))), None)
    return None
