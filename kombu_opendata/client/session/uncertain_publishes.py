"""Publishes that the broker refused without knowing whether they will be stored, so that a repetition is stored once.

The broker does so when its store does not answer. Whoever publishes the same content again over this session means the
same message: it gets the number of the first attempt, by which the broker knows what it has stored.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ...protocol.envelope import encode_fields, open_envelope
from ...protocol.framing import client_messages
from ...protocol.messages import Publish, Send

_HEADER_BYTES = 4  # of a frame
#: the broker remembers a session's last 1,024 numbers
_REMEMBERED = 1000


class UncertainPublishes:
    """The uncertain publishes of one session.

    Attributes:
        numbers: by their content.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def note(self, frame: bytes) -> None:
        """This request was refused, and it is not known whether it was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers[content_of(message)] = message.seq

    def confirm(self, frame: bytes) -> None:
        """This request was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers.pop(content_of(message), None)

    def number_of(self, message: Any, last: int) -> int | None:
        """The number of an earlier attempt at this message, unless it is too long ago.

        Args:
            last: the number of the session's last publish.
        """
        for content, number in list(self.numbers.items()):
            if number > last - _REMEMBERED:
                break
            del self.numbers[content]
        return self.numbers.get(content_of(message))


def content_of(message: Publish | Send) -> bytes:
    """A digest of what makes a message the same; when it was made does not count."""
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
