"""The messages about instances, the databases of a broker. See docs/rfcs/0002-wire-protocol.md.

The rest of the protocol, and how a message is laid out, is in :mod:`.messages`.
"""

from __future__ import annotations

from .message_base import Message


# ------------------------------------------------------------------ client → broker
class CreateInstance(Message, tag=38):
    """Make an instance, so that clients may name it in their Hello. Answer: InstanceCreated."""

    rid: int
    name: str


class ListInstances(Message, tag=39):
    """Which instances there are. Answer: InstanceList."""

    rid: int


# ------------------------------------------------------------------ broker → client
class InstanceCreated(Message, tag=138):
    """``created``: it is new; False: it was there already."""

    rid: int
    created: bool


class InstanceList(Message, tag=139):
    """Each instance's name, and whether it is open: open since somebody connected to it, or since the start.

    Of a store in a bucket, only those that are open.
    """

    rid: int
    instances: dict[str, bool]
