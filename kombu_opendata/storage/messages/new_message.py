"""The records of a new message before they are stored."""

from __future__ import annotations

from typing import NamedTuple


class NewMessage(NamedTuple):
    """The metadata record of a message, and its envelope or the payload record with the envelope's place."""

    id: int
    metadata: bytes
    uri: bytes  # the payload record; empty if the envelope is here
    envelope: bytes
