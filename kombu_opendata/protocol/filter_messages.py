"""The messages about filters (docs/rfcs/0005-selectors.md).

The rest of the protocol, and how a message is laid out, is in :mod:`.messages`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .message_base import Message


class Explain(Message, tag=90):
    """Why a queue gets a message or not: the one with this id, or one with these metadata headers. Answer: Explained.

    Without a ``queue`` it is the ``filter`` that is explained. A ``message_id`` of -1 is none.
    """

    rid: int
    queue: str = ""
    message_id: int = -1
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    filter: str = ""


class Explained(Message, tag=190):
    """The answer: see kombu_opendata.client.calls.explain_routing."""

    rid: int
    report: dict[str, Any]
