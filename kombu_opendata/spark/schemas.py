"""Spark's schemas as Arrow's, with an error that names the column where there is no such thing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, UserDefinedType, VariantType


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
            except PySparkException as exc:
                why = str(exc)
        refused[field.name] = why
    return pa.schema(fields), refused


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
