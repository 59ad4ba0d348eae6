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

    ``user`` is empty if the broker has no users. ``login`` is another user if the client acts as ``user``. ``roles``
    are the roles of the user and the roles that these include, or all roles if the broker has no users.
    """

    user: str
    login: str
    instance: str
    roles: list[str]
    configure: str
    write: str
    read: str

    def may(self, permission: Permission) -> bool:
        """Return True if the user has a permission on some object; the broker may refuse a call for other objects."""
        return all((right and getattr(self, right)) or role in self.roles for right, role in permission.rights.items())


class Status(Numbered, tag=114):
    """Status of the broker."""

    report: dict[str, Any]


class InstanceCreated(Numbered, tag=138):
    """Result of CreateInstance; ``created`` is False if the instance existed already."""

    created: bool


class InstanceList(Numbered, tag=139):
    """Names of instances, with True for an open instance. For a store in a bucket, only open instances are listed.

    An instance is opened at startup, or when the first client connects to it.
    """

    instances: dict[str, bool]


class Maintained(Numbered, tag=160):
    """Report of the maintenance: see kombu_opendata.client.maintain."""

    report: dict[str, Any]


class Reloaded(Numbered, tag=161):
    """Result of Reload: names of added, removed and changed users; ``certificates`` is True if the broker has any."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    certificates: bool


# ------------------------------------------------------------------ client → broker
@operation("see the broker's status", role("monitor"), query=True, overtakes=True)
class GetStatus(Request[Status], tag=19):
    """Request to get the broker's status."""


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

    ``again_in_seconds`` is the time until the client's next request (0: unknown). The broker runs the duty ``collect``
    automatically only if that request is overdue.
    """

    duties: list[str]
    again_in_seconds: float = 0.0


@operation("reload the broker's files", role("admin"))
class Reload(Request[Reloaded], tag=61):
    """Request to reload the files of users and certificates. Reply: Reloaded, or Failed if a file is not valid."""


@operation("see the connected user and its permissions", entry())
class WhoAmI(Request[Identity], tag=239):
    """Request to get the user and permissions of the client."""


# ------------------------------------------------------------------ between the brokers of one store
class StandbyHello(Numbered, tag=36):
    """First message of a standby to the active broker, in place of a Hello. Reply: StandbyWelcome.

    ``proof`` shows that the standby reads the same store, see :func:`prove`. Both brokers then send heartbeats. With
    the proof of a ``successor``, the message means that the sender has taken over, and the receiver ends.
    """

    id: str  # id of the standby, as in the active record
    addresses: list[str]  # addresses of the standby for clients
    nonce: bytes
    proof: bytes
    now_ms: int = 0  # by the standby's clock; 0: unknown
    prepares: bool = False  # the standby supports Prepare


class TakeOver(WireMessage, tag=135):
    """Command to a standby to take over now. The sender no longer serves clients.

    For a store in a bucket, ``record`` and ``version`` are the active record and the version of its object, which the
    standby replaces.
    """

    record: bytes = b""
    version: dict[str, str] = msgspec.field(default_factory=dict)


class Prepare(WireMessage, tag=140):
    """Command to a standby to read instances before a TakeOver; the sender still serves clients. Reply: Prepared."""

    instances: list[str]


class Prepared(WireMessage, tag=41):
    """Reply of a standby to Prepare."""


class StandbyWelcome(Numbered, tag=136):
    """Reply to a StandbyHello; ``proof`` is the active broker's."""

    proof: bytes
    heartbeat_ms: int


class HandingOver(Numbered, tag=137):
    """Notice that the broker ends, and the standby at these addresses takes over."""

    addresses: list[str]


@operation("move the service to the standby", role("admin"), query=True)
class HandOver(Request[HandingOver], tag=37):
    """Request that the broker hands over to the standby and ends."""


def prove(key: str, role: str, id: str, nonce: bytes, addresses: list[str]) -> bytes:
    """Return the proof that a broker knows the key in the active record: an HMAC-SHA256 of the other arguments.

    ``role`` is ``standby``, ``active`` or ``successor``; ``id`` and ``addresses`` are the standby's. Without the
    addresses, an attacker between the brokers could redirect clients.
    """
    return hmac.digest(bytes.fromhex(key), msgspec.json.encode((role, id, nonce, addresses)), "sha256")
