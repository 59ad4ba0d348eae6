"""An envelope with holes: what all rows share is encoded once, and the envelope of a row is a join of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...protocol.envelope import encode_fields as encode
from .arrow_text import Piece
from .template import ID_MARKER, Template

_ARRAY_OF_7 = b"\x97"


def envelope_pieces(
    template: Template,
    bodies: pa.Array,
    ids: pa.Array,
    headers: Mapping[str, pa.Array],
    properties: Mapping[str, pa.Array],
) -> list[Piece]:
    """The pieces of the envelopes of some rows. Columns have values that are encoded as msgpack already.

    Args:
        headers, properties: the columns of headers and properties that differ from row to row.
    """
    return [
        _ARRAY_OF_7,
        bodies,
        encode(template.content_type) + encode(template.content_encoding),
        *_map(template.headers, headers, ids),
        *_map(template.properties, properties, ids),
        encode(template.exchange) + encode(template.routing_key),
    ]


def _map(values: Mapping[str, Any], columns: Mapping[str, pa.Array], ids: pa.Array) -> list[Piece]:
    size = len(values)
    pieces: list[Piece] = [bytes((0x80 | size,)) if size < 16 else b"\xde" + size.to_bytes(2, "big")]
    for name, value in values.items():
        pieces.append(encode(name))
        if value == ID_MARKER:
            pieces.append(ids)
        else:
            pieces.append(columns[name] if name in columns else encode(value))
    return pieces
