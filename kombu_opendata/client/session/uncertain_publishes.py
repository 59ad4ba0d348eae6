"""Publishes that the broker refused although they may be stored; a repetition is stored once.

The broker does so when its store does not answer. A publish of the same content over this session counts as the same
message. It gets the number of the first attempt, by which the broker recognizes a stored message.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ...protocol.envelope import encode_fields, open_envelope
from ...protocol.framing import client_messages
from ...protocol.messages import Publish, Send

_HEADER_BYTES = 4  # of the length of a frame
#: the broker remembers a session's last 1,024 numbers
_REMEMBERED = 1000


class UncertainPublishes:
    """Uncertain publishes of one session.

    Attributes:
        numbers: numbers of the publishes, by content.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def note(self, frame: bytes) -> None:
        """Record that this request was refused and that it is unknown whether it was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers[content_of(message)] = message.seq

    def confirm(self, frame: bytes) -> None:
        """Record that this request was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers.pop(content_of(message), None)

    def number_of(self, message: Any, last: int) -> int | None:
        """Return the number of an earlier attempt at this message, unless it is too long ago.

        Args:
            last: the number of the session's last publish.
        """
        for content, number in list(self.numbers.items()):
            if number > last - _REMEMBERED:
                break
            del self.numbers[content]
        return self.numbers.get(content_of(message))


def content_of(message: Publish | Send) -> bytes:
    """Return a digest of the content that identifies a message; its time does not count."""
    envelopes = [message.envelope] if isinstance(message, Publish) else [envelope for envelope, *_ in message.messages]
    digest = hashlib.blake2b(repr((message.exchange, message.routing_key, len(envelopes))).encode(), digest_size=16)
    for envelope in envelopes:
        opened = open_envelope(envelope)
        if opened is None:
            digest.update(envelope)
        else:
            body, content_type, encoding, headers, properties, *_ = opened
            timeless = {name: value for name, value in properties.items() if name != "timestamp"}
            digest.update(encode_fields((body, content_type, encoding, headers, timeless)))
    return digest.digest()
