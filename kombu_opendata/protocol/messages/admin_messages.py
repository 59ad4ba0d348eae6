"""Messages of administration: the broker's status, maintenance and instances."""

from __future__ import annotations

from typing import Any

from .message_base import Numbered


# ------------------------------------------------------------------ client → broker
class GetStatus(Numbered, tag=19):
    """Request to get the broker's report. Reply: Status."""


class CreateInstance(Numbered, tag=38):
    """Request to create an instance, which clients may then name in their Hello. Reply: InstanceCreated."""

    name: str


class ListInstances(Numbered, tag=39):
    """Request to list the instances. Reply: InstanceList."""


class Maintain(Numbered, tag=60):
    """Request to run maintenance duties now; an empty list means all of them. Reply: Maintained.

    ``again_in_seconds`` is the time until the client's next request (0: unknown). The broker postpones its own
    collection until that is overdue.
    """

    duties: list[str]
    again_in_seconds: float = 0.0


class Reload(Numbered, tag=61):
    """Request to reload the files of users and certificates. Reply: Reloaded, or Failed if a file can't be used."""


class WhoAmI(Numbered, tag=239):
    """Request to get the user and permissions of the client. Reply: Identity."""


# ------------------------------------------------------------------ broker → client
class Identity(Numbered, tag=240):
    """User and permissions of the client in its instance.

    ``user`` is empty if the broker has no users; ``login`` differs from it if the client acts as the user. ``roles``
    are those of the user and those that they include; without users, all roles.
    """

    user: str
    login: str
    instance: str
    roles: list[str]
    configure: str
    write: str
    read: str


class Status(Numbered, tag=114):
    """Report of the broker."""

    report: dict[str, Any]


class InstanceCreated(Numbered, tag=138):
    """Result of CreateInstance; ``created`` is False if the instance existed already."""

    created: bool


class InstanceList(Numbered, tag=139):
    """Names of instances, with True for those that are open, since startup or since a client connected to them.

    For a store in a bucket, only the open instances are listed.
    """

    instances: dict[str, bool]


class Maintained(Numbered, tag=160):
    """Report of the maintenance: see kombu_opendata.client.calls.maintain."""

    report: dict[str, Any]


class Reloaded(Numbered, tag=161):
    """Result of Reload: names of added, removed and changed users, and True if there are certificates."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    certificates: bool
