"""Bodies of messages as text. A pickle is never loaded."""

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

#: characters of a body that are shown; the whole body can be downloaded
MAX_SHOWN = 64 << 10
#: first byte of every pickle since protocol 2
_PICKLE = b"\x80"
_PICKLES = ("application/x-python-serialize", "application/x-pickle", "pickle")


@dataclass(frozen=True)
class Body:
    """A body.

    Attributes:
        kind: ``json`` (or a format that decodes to the same values), ``text``, ``pickle``, ``bytes``, ``too large`` or
            ``unreadable``.
        text: the text to show, with masked values.
        size: the stored size in bytes.
        is_cut: whether the text is only the beginning.
    """

    kind: str
    text: str
    size: int
    is_cut: bool = False


def body_of(message: Message, masking: Masking) -> Body:
    """Return the body of a message as text; a large one takes a fraction of a second."""
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
    """Return the beginning of a value as indented JSON, with masked values; omitted values are shown as ``…``."""
    text, is_cut = _json(value, masking)
    return f"{text}\n…" if is_cut else text


def _json(value: Any, masking: Masking) -> tuple[str, bool]:
    """Return the beginning of a value, and whether it is cut.

    Omitted values are not formatted, so that a large body does not delay other requests.
    """
    budget = [MAX_SHOWN]
    beginning = _beginning(value, budget, 0)
    text = json.dumps(plain(masking.value(beginning)), indent=2, ensure_ascii=False, default=str)
    return text[:MAX_SHOWN], budget[0] < 0 or len(text) > MAX_SHOWN


def _beginning(value: Any, left: list[int], depth: int) -> Any:
    """Return the first ``left[0]`` characters of a value, without values that are nested too deep for the masking."""
    left[0] -= 1
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(value, str):
        cut_text = value[: max(left[0], 0)]
        left[0] -= len(value)
        return cut_text
    if isinstance(value, Mapping):
        beginning = {}
        for name, element in value.items():
            if left[0] < 0:
                break
            left[0] -= len(str(name))
            beginning[name] = _beginning(element, left, depth + 1)
        return beginning
    if isinstance(value, (list, tuple)):
        return [_beginning(element, left, depth + 1) for element in takewhile(lambda _one: left[0] >= 0, value)]
    return value
