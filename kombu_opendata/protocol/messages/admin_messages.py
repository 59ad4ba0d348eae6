"""The messages of administration: the broker's status, its maintenance, its instances."""

from __future__ import annotations

from typing import Any

from .message_base import Numbered


# ------------------------------------------------------------------ client → broker
class GetStatus(Numbered, tag=19):
    """Ask for the broker's own report. Answer: Status."""


class CreateInstance(Numbered, tag=38):
    """Create an instance, which clients may then name in their Hello. Answer: InstanceCreated."""

    name: str


class ListInstances(Numbered, tag=39):
    """List the instances. Answer: InstanceList."""


class Maintain(Numbered, tag=60):
    """Run maintenance duties now; an empty list means all of them. Answer: Maintained.

    ``again_in_seconds`` is when the client intends to ask again (0: it does not say). The broker postpones its own
    collection until that is overdue.
    """

    duties: list[str]
    again_in_seconds: float = 0.0


class Reload(Numbered, tag=61):
    """Read the files of users and certificates again, at once. Answer: Reloaded, or Failed if one can't be used."""


class WhoAmI(Numbered, tag=239):
    """Ask what the broker takes the client for. Answer: Identity."""


# ------------------------------------------------------------------ broker → client
class Identity(Numbered, tag=240):
    """Who the client is, and what it may do in its instance.

    ``user`` is empty if the broker has no users; ``login`` is another one than that if it acts as the user.
    ``roles`` are those that the user has and those that they include; without users, all of them.
    """

    user: str
    login: str
    instance: str
    roles: list[str]
    configure: str
    write: str
    read: str


class Status(Numbered, tag=114):
    """The broker's report about itself."""

    report: dict[str, Any]


class InstanceCreated(Numbered, tag=138):
    """``created`` is False if the instance existed already."""

    created: bool


class InstanceList(Numbered, tag=139):
    """The name of each instance, and whether it is open: since the start, or since a client connected to it.

    For a store in a bucket, only the open instances are listed.
    """

    instances: dict[str, bool]


class Maintained(Numbered, tag=160):
    """What was done: see kombu_opendata.client.calls.maintain."""

    report: dict[str, Any]


class Reloaded(Numbered, tag=161):
    """The files were read again: names of users that are new, gone or changed, and whether there are certificates."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    certificates: bool
