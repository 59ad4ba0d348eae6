"""The base class of all messages: a msgpack array whose first element is the message's number."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, array_like=True, gc=False, tag_field="op"):
    """A message of the wire protocol, in either direction."""
