"""Extension types of msgpack for values of headers and properties that msgpack would convert to text.

====  =============================  ==============================
code  type                           data, as UTF-8
====  =============================  ==============================
1     datetime without a time zone   ISO 8601
2     Decimal                        its digits, sign and exponent
3     date                           ISO 8601
4     time                           ISO 8601
5     UUID                           hexadecimal, with hyphens
====  =============================  ==============================

A datetime with a time zone is msgpack's own timestamp. Producers encode these types and consumers restore them; the
broker copies an extension unchanged, and compares it by its text.
"""

from __future__ import annotations

import datetime as dt
import decimal
import operator
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.msgpack import Ext

#: types that msgpack represents and that contain no other values
PLAIN = frozenset({str, int, float, bool, type(None), bytes})
_ARRAYS = (list, tuple, set, frozenset)

#: code, type, conversion to text, conversion from text; datetime precedes its base class date
_TYPES: tuple[tuple[int, type, Callable[[Any], str], Callable[[str], Any]], ...] = (
    (1, dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    (2, decimal.Decimal, str, decimal.Decimal),
    (3, dt.date, dt.date.isoformat, dt.date.fromisoformat),
    (4, dt.time, dt.time.isoformat, dt.time.fromisoformat),
    (5, uuid.UUID, str, uuid.UUID),
)
#: types whose subclasses, such as Django's SafeString and float64 of NumPy, are encoded as they are
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (bytes, bytes.__bytes__),
    (float, float.__float__),
    (int, int.__int__),
)
_RESTORE = {code: restored for code, _type, _text_of, restored in _TYPES}


def with_extensions(values: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return headers or properties in which extensions replace values of the types above, at any depth."""
    changed: dict[Any, Any] | None = None
    for name, value in values.items():
        if type(value) not in PLAIN and (encoded := extended(value)) is not value:
            changed = dict(values) if changed is None else changed
            changed[name] = encoded
    return values if changed is None else changed


def extended(value: Any) -> Any:
    """Return a value in which extensions replace values of the types above, at any depth."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, dict):
        return with_extensions(value)
    if isinstance(value, _ARRAYS):
        if PLAIN.issuperset(map(type, value)):
            return value
        items = [extended(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value if kind is dt.datetime else dt.datetime.fromisoformat(value.isoformat(timespec="microseconds"))
    for code, known, text_of, _restored in _TYPES:
        if isinstance(value, known):
            return Ext(code, text_of(value).encode())
    return value


def base_value(value: Any) -> Any:
    """Return a value of a subclass of text, bytes or a number as its base type, for an encoder's ``enc_hook``.

    A lazy translation of Django is returned as text.

    Raises:
        TypeError: msgpack can't encode the value.
    """
    for base, plain_of in _BASES:
        if isinstance(value, base):
            return plain_of(value)
    functional = sys.modules.get("django.utils.functional")
    if functional is not None and isinstance(value, functional.Promise):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def restore(code: int, data: memoryview) -> Any:
    """Return the value of an extension; an unknown or invalid extension stays unchanged."""
    try:
        return _RESTORE[code](str(data, "utf-8"))
    except (KeyError, ValueError, ArithmeticError):
        return Ext(code, bytes(data))
