"""Arrow schemas for Spark's schemas, and the reasons why some columns have no Arrow type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

#: types without parameters. Spark's times with a time zone arrive in UTC.
_ARROW: dict[type[T.DataType], pa.DataType] = {
    T.NullType: pa.null(), T.BooleanType: pa.bool_(), T.ByteType: pa.int8(), T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(), T.LongType: pa.int64(), T.FloatType: pa.float32(), T.DoubleType: pa.float64(),
    T.StringType: pa.string(), T.BinaryType: pa.binary(), T.DateType: pa.date32(), T.TimeType: pa.time64("ns"),
    T.TimestampType: pa.timestamp("us", "UTC"), T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
}  # fmt: skip


def arrow_schema(schema: Any) -> tuple[pa.Schema, dict[str, str]]:
    """Return the Arrow schema, and the reasons why columns are missing in it, by name.

    Variants, geometries and user-defined types are omitted, because Spark would send them in their storage format.
    """
    fields, refused = [], {}
    for field in schema.fields:
        try:
            fields.append(_arrow_field(field.name, field.dataType, field.nullable))
        except TypeError as exc:
            refused[field.name] = str(exc)
        except ValueError as exc:  # a void that is never null
            refused[field.name] = f"{field.dataType.simpleString()}: {exc}"
    return pa.schema(fields), refused


def _arrow_field(name: str, kind: T.DataType, nullable: bool) -> pa.Field:
    """Return a field in the form that Spark sends and expects.

    Raises:
        TypeError: the type has no Python value.
        ValueError: Arrow has no such type.
    """
    arrow_type = _ARROW.get(type(kind))
    if isinstance(kind, T.DecimalType):
        arrow_type = pa.decimal128(kind.precision, kind.scale)
    elif isinstance(kind, T.ArrayType):
        arrow_type = pa.list_(_arrow_field("element", kind.elementType, kind.containsNull))
    elif isinstance(kind, T.MapType):
        key = _arrow_field("key", kind.keyType, False)
        arrow_type = pa.map_(key, _arrow_field("value", kind.valueType, kind.valueContainsNull))
    elif isinstance(kind, T.StructType):
        arrow_type = pa.struct([_arrow_field(field.name, field.dataType, field.nullable) for field in kind.fields])
    if arrow_type is None:
        raise TypeError(f"{kind.simpleString()} has no Python value that every worker knows")
    return pa.field(name, arrow_type, nullable)


def without_void(kind: T.DataType) -> T.DataType:
    """Return the type with string in place of a void in an array, map or struct.

    Arrow can't always express such a void. A void is always null, so a cast to string does not change it.
    """
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_no_void(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(_no_void(kind.keyType), _no_void(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        parts = ((part.name, _no_void(part.dataType), part.nullable, part.metadata) for part in kind.fields)
        return T.StructType([T.StructField(*part) for part in parts])
    return kind


def _no_void(kind: T.DataType) -> T.DataType:
    return T.StringType() if isinstance(kind, T.NullType) else without_void(kind)
