"""The records of a new message, on their way to the store."""

from __future__ import annotations

from typing import NamedTuple


class NewMessage(NamedTuple):
    """The metadata record of a message, and its envelope or the payload record that says where the envelope is."""

    id: int
    metadata: bytes
    uri: bytes  # the payload record; empty if the envelope is here
    envelope: bytes
