"""Decoded values as texts, numbers, lists and maps, which JSON can express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import msgspec

PREVIEW_BYTES = 256


def readable(value: Any, limit: int = PREVIEW_BYTES) -> Any:
    """Return a value for JSON; long bytes become a preview."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return readable(value._asdict(), limit)
    if isinstance(value, msgspec.Struct):
        return readable(msgspec.structs.asdict(value), limit)
    if is_dataclass(value) and not isinstance(value, type):
        return readable(asdict(value), limit)
    if isinstance(value, Mapping):
        return {_name(name): readable(part, limit) for name, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [readable(part, limit) for part in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return preview(bytes(value), limit)
    if value is None or isinstance(value, (bool, int, float, str)):
        return _clean(value)
    return str(value)


def preview(data: bytes, limit: int = PREVIEW_BYTES) -> Any:
    """Return bytes as text if they are text, else in hexadecimal; long ones are cut, with their size."""
    shown = data[:limit]
    try:
        text = shown.decode()
        kind = "text"
    except UnicodeDecodeError as exc:
        # a character that was cut does not make the text hexadecimal
        whole = len(data) > limit and exc.start > len(shown) - 4
        kind, text = ("text", shown[: exc.start].decode()) if whole else ("hex", shown.hex())
    if kind == "text" and len(data) <= limit and text.isprintable():
        return text
    return {"bytes": len(data), kind: text}


def _name(name: Any) -> str:
    return str(_clean(name)) if not isinstance(name, bytes) else name.decode("utf-8", "backslashreplace")


def _clean(value: Any) -> Any:
    """Return a text without surrogates, which names that are not UTF-8 contain and no terminal or JSON accepts."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
