"""The messages between the brokers of one store, and the call that moves the service from one to the other."""

from __future__ import annotations

import hmac

import msgspec

from .message_base import Numbered, WireMessage


class StandbyHello(Numbered, tag=36):
    """The first message of a standby to the active broker, in place of a Hello. Answer: StandbyWelcome.

    ``proof`` shows that the standby reads the same store, see :func:`prove`. From then on both send heartbeats. With
    the proof of a ``successor``, it says that the sender has taken over: the replaced broker ends.
    """

    id: str  # the standby's, as in the active record
    addresses: list[str]  # where clients reach the standby
    nonce: bytes
    proof: bytes
    now_ms: int = 0  # by its clock; 0: not given
    prepares: bool = False  # it knows Prepare


class HandOver(Numbered, tag=37):
    """Move the service to the standby, and end. Answer: HandingOver."""


class TakeOver(WireMessage, tag=135):
    """To a standby: go on in my place, now. The sender answers nobody any more.

    For a bucket it has the active record and the version of its object, which the standby replaces.
    """

    record: bytes = b""
    version: dict[str, str] = msgspec.field(default_factory=dict)


class Prepare(WireMessage, tag=140):
    """To a standby: a TakeOver follows. Read what you can of these instances now; the sender still serves.

    Answer: Prepared.
    """

    instances: list[str]


class Prepared(WireMessage, tag=41):
    """The answer of a standby to Prepare."""


class StandbyWelcome(Numbered, tag=136):
    """Answer to a StandbyHello; ``proof`` is the active broker's."""

    proof: bytes
    heartbeat_ms: int


class HandingOver(Numbered, tag=137):
    """The broker ends now, and the standby at these addresses goes on."""

    addresses: list[str]


def prove(key: str, role: str, id: str, nonce: bytes, addresses: list[str]) -> bytes:
    """The proof that a broker knows the key in the active record: an HMAC-SHA256 of what it says.

    Args:
        role: ``standby``, ``active`` or ``successor``, of the one that proves it.
        id: the standby's.
        addresses: the standby's; without them, whoever stands in between could send clients elsewhere.
    """
    return hmac.digest(bytes.fromhex(key), msgspec.json.encode((role, id, nonce, addresses)), "sha256")
