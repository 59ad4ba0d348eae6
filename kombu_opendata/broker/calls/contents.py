"""Redaction of messages for the role monitor without the right to read: no body, arguments or custom headers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ...protocol.envelope import encode_envelope, open_envelope
from ...protocol.messages import AttemptInfo, FailureInfo, MessageInfo
from ...protocol.permissions import ALL_EXCHANGES, SHOWN_HEADERS
from ..access.rights import Rights

_SHOWN_PROPERTIES = ("priority", "correlation_id", "delivery_mode", "expiration")


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata headers with empty texts in place of the values that are not shown."""
    return {name: value if name in SHOWN_HEADERS else "" for name, value in headers.items()}


def shown_envelope(envelope: bytes) -> bytes:
    """Return an envelope without its body and without the values that are not shown."""
    fields = open_envelope(envelope)
    if fields is None:
        return b""
    _body, _type, _encoding, headers, properties, exchange, routing_key = fields
    header_values = {
        name: headers[name] for name in SHOWN_HEADERS if isinstance(headers.get(name), (str, int, float, bool))
    }
    property_values = {
        name: properties[name] for name in _SHOWN_PROPERTIES if isinstance(properties.get(name), (str, int))
    }
    return encode_envelope(
        b"", "application/octet-stream", "binary", header_values, property_values, exchange, routing_key
    )


def shown_message(rights: Rights, message: MessageInfo) -> MessageInfo | None:
    """Return the part of a message that these rights show; None if it is empty.

    A user who may read one of the message's queues sees the headers; the role monitor also shows the other queues.
    """
    if rights.read[ALL_EXCHANGES]:
        return message
    readable = tuple(status for status in message.queues if rights.read[status.queue])
    monitors = "monitor" in rights.roles
    if not readable and not monitors:
        return None
    headers = message.headers if readable else shown_headers(message.headers)
    return replace(message, headers=headers, queues=message.queues if monitors else readable)


def shown_attempt(rights: Rights, attempt: AttemptInfo) -> AttemptInfo | None:
    """Return the part of an attempt that these rights show; None if it is empty."""
    if rights.read[ALL_EXCHANGES] or rights.read[attempt.queue]:
        return attempt
    if "monitor" not in rights.roles:
        return None
    event = attempt.event
    if event is not None:
        event = replace(event, headers=shown_headers(event.headers), body=None)
    return replace(attempt, event=event, error="", traceback="")


def shown_failure(rights: Rights, failure: FailureInfo) -> FailureInfo:
    """Return the part of a failure that these rights show, in a queue that may be watched."""
    if rights.read[ALL_EXCHANGES] or rights.read[failure.queue]:
        return failure
    return replace(failure, error="", traceback="")
