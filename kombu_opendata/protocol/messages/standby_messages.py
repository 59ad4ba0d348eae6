"""Messages between the brokers of one store, and the call that hands over from one to the other."""

from __future__ import annotations

import hmac

import msgspec

from .message_base import Numbered, WireMessage


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


class HandOver(Numbered, tag=37):
    """Request to hand over to the standby, and end. Reply: HandingOver."""


class TakeOver(WireMessage, tag=135):
    """Command to a standby to take over now. The sender serves no client any more.

    For a bucket the message has the active record and the version of its object, which the standby replaces.
    """

    record: bytes = b""
    version: dict[str, str] = msgspec.field(default_factory=dict)


class Prepare(WireMessage, tag=140):
    """Command to a standby to read these instances ahead of a TakeOver; the sender still serves clients.

    Reply: Prepared.
    """

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


def prove(key: str, role: str, id: str, nonce: bytes, addresses: list[str]) -> bytes:
    """Return the proof that a broker knows the key in the active record: an HMAC-SHA256 of its statement.

    Args:
        role: the role of the proving broker: ``standby``, ``active`` or ``successor``.
        id: the id of the standby.
        addresses: the addresses of the standby; without them, a party in between could redirect clients.
    """
    return hmac.digest(bytes.fromhex(key), msgspec.json.encode((role, id, nonce, addresses)), "sha256")
