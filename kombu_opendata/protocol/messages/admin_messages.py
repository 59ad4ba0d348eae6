"""Messages of administration: the broker's status, maintenance, instances, and its standby."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec

from ..permissions import Permission, entry, role
from .message_base import Numbered, Request, WireMessage, operation


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

    def may(self, permission: Permission) -> bool:
        """Return True if the user has a permission on some object; on another one the broker may refuse the call."""
        return all((right and getattr(self, right)) or role in self.roles for right, role in permission.rights.items())


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
    """Report of the maintenance: see kombu_opendata.client.maintain."""

    report: dict[str, Any]


class Reloaded(Numbered, tag=161):
    """Result of Reload: names of added, removed and changed users, and True if there are certificates."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    certificates: bool


# ------------------------------------------------------------------ client → broker
@operation("see the broker's status", role("monitor"), query=True, overtakes=True)
class GetStatus(Request[Status], tag=19):
    """Request to get the broker's report."""


@operation("create instances", role("admin"), query=True)
class CreateInstance(Request[InstanceCreated], tag=38):
    """Request to create an instance, which clients may then name in their Hello."""

    name: str


@operation("list instances", entry("lists those that the user has an entry for"), query=True)
class ListInstances(Request[InstanceList], tag=39):
    """Request to list the instances."""


@operation("run the broker's maintenance", role("operator"))
class Maintain(Request[Maintained], tag=60):
    """Request to run maintenance duties now; an empty list means all of them.

    ``again_in_seconds`` is the time until the client's next request (0: unknown). The broker postpones its own
    collection until that is overdue.
    """

    duties: list[str]
    again_in_seconds: float = 0.0


@operation("reload the broker's files", role("admin"))
class Reload(Request[Reloaded], tag=61):
    """Request to reload the files of users and certificates. Reply: Reloaded, or Failed if a file can't be used."""


@operation("see the connected user and its permissions", entry())
class WhoAmI(Request[Identity], tag=239):
    """Request to get the user and permissions of the client."""


# ------------------------------------------------------------------ between the brokers of one store
class StandbyHello(Numbered, tag=36):
    """First message of a standby to the active broker, in place of a Hello. Reply: StandbyWelcome.

    ``proof`` shows that the standby reads the same store, see :func:`prove`. Both then send heartbeats. With the proof
    of a ``successor``, the message means that the sender has taken over: the replaced broker ends.
    """

    id: str  # id of the standby, as in the active record
    addresses: list[str]  # addresses of the standby for clients
    nonce: bytes
    proof: bytes
    now_ms: int = 0  # by its clock; 0: not given
    prepares: bool = False  # it supports Prepare


class TakeOver(WireMessage, tag=135):
    """Command to a standby to take over now. The sender serves no client any more.

    For a bucket the message has the active record and the version of its object, which the standby replaces.
    """

    record: bytes = b""
    version: dict[str, str] = msgspec.field(default_factory=dict)


class Prepare(WireMessage, tag=140):
    """Command to a standby to read instances ahead of a TakeOver; clients are still served. Reply: Prepared."""

    instances: list[str]


class Prepared(WireMessage, tag=41):
    """Reply of a standby to Prepare."""


class StandbyWelcome(Numbered, tag=136):
    """Reply to a StandbyHello; ``proof`` is the active broker's."""

    proof: bytes
    heartbeat_ms: int


class HandingOver(Numbered, tag=137):
    """Notice that the broker ends now, and the standby at these addresses takes over."""

    addresses: list[str]


@operation("move the service to the standby", role("admin"), query=True)
class HandOver(Request[HandingOver], tag=37):
    """Request to hand over to the standby, and end."""


def prove(key: str, role: str, id: str, nonce: bytes, addresses: list[str]) -> bytes:
    """Return the proof that a broker knows the key in the active record: an HMAC-SHA256 of its statement.

    Args:
        role: the role of the proving broker: ``standby``, ``active`` or ``successor``.
        id: the id of the standby.
        addresses: the addresses of the standby; without them, a party in between could redirect clients.
    """
    return hmac.digest(bytes.fromhex(key), msgspec.json.encode((role, id, nonce, addresses)), "sha256")
