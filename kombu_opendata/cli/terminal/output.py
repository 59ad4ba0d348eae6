"""What commands print: lines for people, JSON for machines.

Names and bodies come from anywhere. For people, characters that a terminal could interpret as a command, or that
change the direction of the text, are shown as escapes; JSON is pure ASCII. Times are local with their zone for people,
ISO 8601 in UTC in JSON. There are no colours unless stdout is a terminal.
"""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

_HARMFUL = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


# ---------------------------------------------------------------------- texts
def shown(value: Any, limit: int = 0) -> str:
    """A text on one line, safe for any terminal; with a limit, cut to that many characters."""
    text = str(value)
    if limit and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(_escaped(one) if unicodedata.category(one) in _HARMFUL else one for one in text)


def shown_lines(text: str) -> str:
    """As :func:`shown`, but line breaks stay."""
    return "\n".join(map(shown, text.split("\n")))


def _escaped(one: str) -> str:
    code = ord(one)
    return _SHORT.get(one) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def value_text(value: Any, limit: int = 0) -> str:
    """A message's body or a header's value for people: a text as it is, anything else as JSON."""
    if isinstance(value, bytes):
        try:
            return shown(value.decode(), limit)
        except UnicodeDecodeError:
            return shown(repr(value[:1000] if limit else value), limit)
    if isinstance(value, str):
        return shown(value, limit)
    return shown(json.dumps(value, ensure_ascii=False, default=str), limit)


def pairs(values: Mapping[str, Any], limit: int = 0) -> str:
    """``name=value`` of each."""
    return shown(" ".join(f"{name}={value_text(value)}" for name, value in values.items()), limit)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Arguments as they are given to options: ``name=text``, or ``name:=JSON``."""
    return " ".join(
        f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, default=str)}"
        for name, value in arguments.items()
    )


# ---------------------------------------------------------------------- times
def moment(ms: int) -> datetime | None:
    """Milliseconds since the epoch as a datetime; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def local(at: datetime | None) -> str:
    """A time in the user's zone, with the offset."""
    return "" if at is None else at.astimezone().isoformat(" ", "seconds")


def age(seconds: float | None) -> str:
    """A duration in at most two units: ``3d 4h``."""
    if seconds is None:
        return "-"
    left = max(0, int(seconds))
    units = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        if left >= size or (name == "s" and not parts):
            parts.append(f"{left // size}{name}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:2])


# ---------------------------------------------------------------------- JSON
def plain(value: Any) -> Any:
    """A JSON value for anything that a client returns.

    Bytes become ``{"base64": …}``; NaN and infinities, which JSON does not have, become texts.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        from base64 import b64encode

        return {"base64": b64encode(value).decode()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def with_times(value: Any) -> Any:
    """A report with datetimes (``…_at``) instead of milliseconds (``…_at_ms``, where 0 and None mean no time)."""
    if isinstance(value, Mapping):
        return dict(_timed(str(name), one) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return [with_times(one) for one in value]
    return value


def _timed(name: str, value: Any) -> tuple[str, Any]:
    if f"_{name}".endswith("_at_ms") and (value is None or type(value) is int):
        return name.removesuffix("_ms"), moment(value or 0)
    return name, with_times(value)


def unpacked(value: Any) -> Any:
    """What the history returns as dictionaries and lists, with times."""
    from msgspec import Struct
    from msgspec.structs import asdict

    from ...protocol.messages.history_messages import EventInfo

    if isinstance(value, (list, tuple)):
        return [unpacked(one) for one in value]
    if not isinstance(value, Struct):
        return value
    routing = {"exchange": value.exchange, "topic": value.topic} if isinstance(value, EventInfo) else {}
    return with_times({**routing, **{name: unpacked(one) for name, one in asdict(value).items()}})


def print_json(value: Any) -> None:
    """Print one document."""
    print(json.dumps(plain(value), indent=2, default=str))


def print_json_line(value: Any) -> None:
    """Print a document on a line of its own."""
    print(json.dumps(plain(value), default=str))


# ---------------------------------------------------------------------- lines
def number(value: float) -> str:
    """A number with thousands separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(count: int, word: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def print_facts(facts: Mapping[str, Any], *, title: str = "") -> None:
    """Print names and values, one pair a line."""
    width = max(map(len, facts), default=0)
    if title:
        say(title)
    for name, value in facts.items():
        text = local(value) if isinstance(value, datetime) else "" if value is None else value
        shown_value = number(text) if type(text) is int and not name.endswith("id") else shown(text)
        say(f"{name:<{width}}  {shown_value}".rstrip())


def say(text: str) -> None:
    """Print a line on stdout, made safe for terminals."""
    never_fail_on_a_character()
    print(shown(text))


def note(text: str) -> None:
    """Print a line for people on stderr: stdout has only what was requested."""
    print(shown(text), file=sys.stderr)


def never_fail_on_a_character() -> None:
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
