"""The messages of administration: the broker's status, its maintenance, its instances."""

from __future__ import annotations

from typing import Any

from .message_base import Message


# ------------------------------------------------------------------ client → broker
class GetStatus(Message, tag=19):
    """Ask for the broker's own report. Answer: Status."""

    rid: int


class CreateInstance(Message, tag=38):
    """Create an instance, which clients may then name in their Hello. Answer: InstanceCreated."""

    rid: int
    name: str


class ListInstances(Message, tag=39):
    """List the instances. Answer: InstanceList."""

    rid: int


class Maintain(Message, tag=60):
    """Run maintenance duties now; an empty list means all of them. Answer: Maintained.

    ``again_in_seconds`` is when the client intends to ask again (0: it does not say). The broker postpones its own
    collection until that is overdue.
    """

    rid: int
    duties: list[str]
    again_in_seconds: float = 0.0


# ------------------------------------------------------------------ broker → client
class Status(Message, tag=114):
    """The broker's report about itself: see kombu_opendata.status."""

    rid: int
    report: dict[str, Any]


class InstanceCreated(Message, tag=138):
    """``created`` is False if the instance existed already."""

    rid: int
    created: bool


class InstanceList(Message, tag=139):
    """The name of each instance, and whether it is open: since the start, or since a client connected to it.

    For a store in a bucket, only the open instances are listed.
    """

    rid: int
    instances: dict[str, bool]


class Maintained(Message, tag=160):
    """What was done: see kombu_opendata.client.calls.maintain."""

    rid: int
    report: dict[str, Any]
