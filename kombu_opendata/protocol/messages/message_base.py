"""Base classes of all messages: a msgpack array whose first element is the message's number."""

from __future__ import annotations

import msgspec


class WireMessage(msgspec.Struct, array_like=True, gc=False, tag_field="op"):
    """Message of the wire protocol, in either direction."""


class Numbered(WireMessage):
    """Request, or a message about one; ``rid`` is the request's number, or 0 for the connection as a whole."""

    rid: int
