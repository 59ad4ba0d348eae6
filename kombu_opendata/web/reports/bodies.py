"""Bodies of messages, as texts that can be shown. A pickle is never loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ...errors import BodyTooLarge
from ...json_values import plain
from ...masking import MAX_DEPTH, Masking
from ...queue_client.message_models import Message

#: characters of a body that are shown; all of it can be saved
MAX_SHOWN = 64 << 10
#: every pickle since protocol 2 begins with this
_PICKLE = b"\x80"
_PICKLES = ("application/x-python-serialize", "application/x-pickle", "pickle")


@dataclass(frozen=True)
class Body:
    """A body.

    Attributes:
        kind: ``json`` (or what decodes to the same values), ``text``, ``pickle``, ``bytes``, ``too large`` or
            ``unreadable``.
        text: what is shown, with masked values.
        size: in bytes, as it is stored.
        is_cut: whether there is more than is shown.
    """

    kind: str
    text: str
    size: int
    is_cut: bool = False


def body_of(message: Message, masking: Masking) -> Body:
    """Return what can be displayed of a message's body; large ones take a part of a second."""
    if message.error is not None:
        return Body("unreadable", message.error.text, 0)
    size = len(message.raw)
    try:
        body = message.displayed()
    except BodyTooLarge as exc:
        return Body("too large", str(exc), size)
    if message.content_type in _PICKLES or (isinstance(body, bytes) and body.startswith(_PICKLE)):
        return Body("pickle", f"a pickle of {size:,} bytes, which is not loaded: {message.raw[:32].hex(' ')} …", size)
    if isinstance(body, bytes):
        return Body("bytes", body[:256].hex(" "), size, len(body) > 256)
    if isinstance(body, str):
        text = masking.text(body[: MAX_SHOWN + 1])
        return Body("text", text[:MAX_SHOWN], size, len(body) > MAX_SHOWN)
    text, is_cut = _json(body, masking)
    return Body("json", text, size, is_cut)


def shown_json(value: Any, masking: Masking) -> str:
    """The beginning of a value as indented JSON, with masked values; what is left out is shown as ``…``."""
    text, is_cut = _json(value, masking)
    return f"{text}\n…" if is_cut else text


def _json(value: Any, masking: Masking) -> tuple[str, bool]:
    """The beginning, and whether there is more. What is not shown costs no time, as requests would wait for it."""
    left = [MAX_SHOWN]
    begun = _beginning(value, left, 0)
    text = json.dumps(plain(masking.value(begun)), indent=2, ensure_ascii=False, default=str)
    return text[:MAX_SHOWN], left[0] < 0 or len(text) > MAX_SHOWN


def _beginning(value: Any, left: list[int], depth: int) -> Any:
    """A value without what comes after so many characters, and without what is nested too deep for the masking."""
    left[0] -= 1
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, str):
        shown = value[: max(left[0], 0)]
        left[0] -= len(value)
        return shown
    if isinstance(value, Mapping):
        found = {}
        for name, one in value.items():
            if left[0] < 0:
                break
            left[0] -= len(str(name))
            found[name] = _beginning(one, left, depth + 1)
        return found
    if isinstance(value, (list, tuple)):
        return [_beginning(one, left, depth + 1) for one in takewhile(lambda _one: left[0] >= 0, value)]
    return value
