"""JSON serializer for Kombu, named ``msgspec``.

Kombu loads it by the ``kombu.serializers`` entry point, before it looks for a transport. The import of this module
imports :mod:`kombu_opendata`, which registers the broker URLs, so ``broker_url`` alone is enough in a Celery app.

Values that JSON can't represent are tagged as in Kombu's own JSON, ``{"__type__": …, "__value__": …}``, and are
restored to their types:

==============================  =======================================================
datetime, date, time            ISO 8601
timedelta                       seconds
UUID, Decimal                   as text
bytes, bytearray, memoryview    base64; restored as bytes
float NaN and infinities        ``nan``, ``inf``, ``-inf``
int over 64 bits                decimal digits
==============================  =======================================================

Tuples and sets are restored as lists; subclasses of str, int and float as these types; enums, dataclasses and msgspec
structs as plain values.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from kombu.utils.json import textual_types

import kombu_opendata  # noqa: F401 - registers the transports

CONTENT_TYPE = "application/x-msgspec+json"
CONTENT_ENCODING = "utf-8"

_PLAIN = frozenset({str, bool, type(None)})
_CONTAINERS = (list, tuple, set, frozenset)
_MARK = b'"__type__"'
_MAX_INT, _MIN_INT = 2**64 - 1, -(2**63)


#: type, its tag, and its conversion to text; a subclass comes before its base
_TAGGED: list[tuple[type | tuple[type, ...], str, Callable[[Any], str]]] = [
    (dt.datetime, "datetime", dt.datetime.isoformat),
    (dt.date, "date", dt.date.isoformat),
    (dt.time, "time", dt.time.isoformat),
    (dt.timedelta, "timedelta", lambda value: repr(value.total_seconds())),
    (uuid.UUID, "uuid", str),
    (decimal.Decimal, "decimal", str),
    ((bytes, bytearray, memoryview), "bytes", lambda value: base64.b64encode(value).decode("ascii")),
]
_UNTAGGED: dict[str, Callable[[str], Any]] = {
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda text: dt.timedelta(seconds=float(text)),
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "bytes": base64.b64decode,
    "float": float,
    "int": int,
}


def _unknown(value: Any) -> Any:
    """Return a plain value, as Kombu's JSON does, for a value that msgspec does not support."""
    if hasattr(value, "__json__"):
        return value.__json__()
    kind = type(value)
    for plain in (str, int, float):  # such as Django's SafeString; a subclass of str may have another __str__
        if issubclass(kind, plain):
            return str.__str__(value) if plain is str else plain(value)
    if isinstance(value, textual_types):  # Django's lazy translations
        return str(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} can't be represented in JSON")


_encode = msgspec.json.Encoder(enc_hook=_unknown).encode
_decode = msgspec.json.Decoder().decode


def dumps(value: Any) -> bytes:
    """Return the value as JSON bytes; raise TypeError for a value that can't be represented."""
    return _encode(value if _is_plain(value) else _tag(value))


def loads(data: bytes | str | bytearray | memoryview) -> Any:
    """Return the value of JSON text or bytes; raise msgspec.DecodeError for invalid JSON."""
    raw = data.encode() if isinstance(data, str) else bytes(data)
    value = _decode(raw)
    return _untag(value) if _MARK in raw else value


def _is_plain(value: Any) -> bool:
    """Return True if JSON represents the value without tags: the common case, which needs no conversion."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is int:
        return bool(_MIN_INT <= value <= _MAX_INT)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return False


def _tag(value: Any) -> Any:
    if _is_plain(value):
        return value
    if isinstance(value, dict):
        return {_key(key): _tag(item) for key, item in value.items()}
    if isinstance(value, _CONTAINERS):
        return [_tag(item) for item in value]
    for kind, name, text_of in _TAGGED:
        if isinstance(value, kind):
            return {"__type__": name, "__value__": text_of(value)}
    if type(value) is float:
        return {"__type__": "float", "__value__": repr(value)}
    if type(value) is int:
        return {"__type__": "int", "__value__": str(value)}
    return value


def _key(key: Any) -> Any:
    """Return a dictionary's key in a form that msgspec encodes; booleans and None become texts, as in JSON."""
    if key is None or isinstance(key, bool):
        return _encode(key).decode()
    return key if isinstance(key, (str, int, float)) else str(key)


def _untag(value: Any) -> Any:
    if type(value) is list:
        return [_untag(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 2 and "__value__" in value:
        restore = _UNTAGGED.get(value.get("__type__", ""))
        if restore is not None:
            return restore(value["__value__"])
    return {key: _untag(item) for key, item in value.items()}


#: for Kombu: encoder, decoder, content type, content encoding
register_args = (dumps, loads, CONTENT_TYPE, CONTENT_ENCODING)
