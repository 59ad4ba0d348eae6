"""Bodies of messages, as texts that can be shown. A pickle is never loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...json_values import plain
from ...queue_client.message_models import Message
from ..masking import Masking

#: characters of a body that are shown; all of it can be saved
MAX_SHOWN = 64 << 10
#: every pickle since protocol 2 begins with this
_PICKLE = b"\x80"
_PICKLES = ("application/x-python-serialize", "application/x-pickle", "pickle")


@dataclass(frozen=True)
class Body:
    """A body.

    Attributes:
        kind: ``json`` (or what decodes to the same values), ``text``, ``pickle`` or ``bytes``.
        text: what is shown, with masked values.
        size: in bytes, as it is stored.
        is_cut: whether there is more than is shown.
    """

    kind: str
    text: str
    size: int
    is_cut: bool = False


def body_of(message: Message, masking: Masking) -> Body:
    """What can be shown of a message's body."""
    size = len(message.raw)
    if message.content_type in _PICKLES or (isinstance(message.body, bytes) and message.body.startswith(_PICKLE)):
        return Body("pickle", f"a pickle of {size:,} bytes, which is not loaded: {message.raw[:32].hex(' ')} …", size)
    if isinstance(message.body, bytes):
        return Body("bytes", message.body[:256].hex(" "), size, size > 256)
    if isinstance(message.body, str):
        text = masking.text(message.body[: MAX_SHOWN + 1])
        return Body("text", text[:MAX_SHOWN], size, len(message.body) > MAX_SHOWN)
    text = shown_json(message.body, masking)
    return Body("json", text[:MAX_SHOWN], size, len(text) > MAX_SHOWN)


def shown_json(value: Any, masking: Masking) -> str:
    """A value as indented JSON, with masked values."""
    try:
        return json.dumps(plain(masking.value(value)), indent=2, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return "nested too deep to be shown"
