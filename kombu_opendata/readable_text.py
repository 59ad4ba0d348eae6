"""Values as text for display: one line, without characters that affect a terminal or the surrounding text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

_HARMFUL = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(value: Any, limit: int = 0) -> str:
    """Return a text on one line, safe for any terminal; with a limit, cut to that many characters."""
    text = str(value)
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(_escaped(char) if unicodedata.category(char) in _HARMFUL else char for char in text)


def shown_lines(text: str) -> str:
    """Return a text as :func:`shown`, but with its line breaks."""
    return "\n".join(map(shown, text.split("\n")))


def _escaped(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def value_text(value: Any, limit: int = 0) -> str:
    """Return a message's body or a header's value for display: texts and UTF-8 unchanged, anything else as JSON.

    Bytes that are not UTF-8 are shown as Python writes them.
    """
    if isinstance(value, bytes):
        try:
            return shown(value.decode(), limit)
        except UnicodeDecodeError:
            return shown(repr(value[:1000] if limit else value), limit)
    if isinstance(value, str):
        return shown(value, limit)
    try:
        return shown(json.dumps(value, ensure_ascii=False, default=str), limit)
    except RecursionError:
        return shown("(nested too deep to display)", limit)


def pairs(values: Mapping[str, Any], limit: int = 0) -> str:
    """Return ``name=value`` of each value."""
    return shown(" ".join(f"{name}={value_text(value)}" for name, value in values.items()), limit)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments in the form of options: ``name=text``, or ``name:=JSON``."""
    return " ".join(
        f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, default=str)}"
        for name, value in arguments.items()
    )


def age(seconds: float | None) -> str:
    """Return a duration in at most two units: ``3d 4h``."""
    if seconds is None:
        return "-"
    remaining = max(0, int(seconds))
    units = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        if remaining >= size or (name == "s" and not parts):
            parts.append(f"{remaining // size}{name}")
            remaining %= size
        elif parts:
            break
    return " ".join(parts[:2])


def number(value: float) -> str:
    """Return a number with thousands separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(count: int, word: str) -> str:
    """Return ``1 message``, ``2 messages``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
