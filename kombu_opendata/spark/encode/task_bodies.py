"""Bodies of tasks and the reprs of their arguments, column by column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from celery.utils.saferepr import saferepr
from kombu.compression import compress
from kombu.serialization import registry
from kombu.utils.json import dumps as json_dumps

from ...celery_integration.serializer import dumps as compact_dumps
from .argument_columns import Argument, json_quote
from .arrow_text import Piece, join, packed_bytes, packed_texts, strings
from .celery_template import Template


class Arguments:
    """Arguments of some rows.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
    """

    def __init__(self, args: Sequence[Argument], kwargs: Mapping[str, Argument], rows: int) -> None:
        self._args = args
        self._kwargs = kwargs
        self._rows = rows

    def args_of(self, row: int) -> tuple[Any, ...]:
        """Return the positional arguments of one row."""
        return tuple(argument.value(row) for argument in self._args)

    def kwargs_of(self, row: int) -> dict[str, Any]:
        """Return the keyword arguments of one row."""
        return {keyword: argument.value(row) for keyword, argument in self._kwargs.items()}

    # ---- bodies
    def packed_bodies(self, template: Template) -> pa.Array:
        """Return the serialized bodies of all rows, each encoded as a msgpack str or bin."""
        texts = self._texts(template)
        if texts is not None and not template.compression:
            return packed_texts(texts) if _makes_text(template) else packed_bytes(texts)
        bodies = self._serialized(template) if texts is None else texts.to_pylist()
        if template.compression:
            bodies = [compress(body, template.compression)[0] for body in bodies]
        if bodies and isinstance(bodies[0], str):
            return packed_texts(strings(bodies))
        return packed_bytes(pa.array(bodies, pa.binary()))

    def _serialized(self, template: Template) -> list[Any]:
        """Return bodies that are serialized row by row, for any serializer."""
        rows = ((self.args_of(row), self.kwargs_of(row), template.embed) for row in range(self._rows))
        return [registry.dumps(row, template.serializer)[2] for row in rows]

    def _texts(self, template: Template) -> pa.Array | None:
        """Return bodies joined from the texts of each argument; None if the serializer's texts can't be joined."""
        encoder = registry._encoders[template.serializer].encoder
        if _makes_text(template):
            embed = json_dumps(template.embed).encode()
            return self._json(b", ", b": ", embed, lambda argument: argument.json(json_dumps), _json_key)
        if encoder is compact_dumps:
            embed = compact_dumps(template.embed)
            return self._json(b",", b":", embed, lambda argument: argument.compact(compact_dumps), compact_dumps)
        return None

    def _json(
        self,
        comma: bytes,
        colon: bytes,
        embed: bytes,
        texts: Callable[[Argument], Piece],
        key: Callable[[str], bytes],
    ) -> pa.Array:
        args: list[Piece] = []
        for argument in self._args:
            args += (comma, texts(argument))
        kwargs: list[Piece] = []
        for keyword, argument in self._kwargs.items():
            kwargs += (comma, key(keyword) + colon, texts(argument))
        pieces = [b"[[", *args[1:], b"]" + comma + b"{", *kwargs[1:], b"}" + comma + embed + b"]"]
        return join(pieces, self._rows)

    # ---- reprs
    def args_reprs(self, limit: int, levels: int) -> pa.Array:
        """Return the ``argsrepr`` header of each row."""
        pieces: list[Piece] = []
        for argument in self._args:
            pieces += (b", ", self._shown(argument, limit, levels))
        end = b",)" if len(self._args) == 1 else b")"
        return self._within([b"(", *pieces[1:], end], limit, levels, self.args_of)

    def kwargs_reprs(self, limit: int, levels: int) -> pa.Array:
        """Return the ``kwargsrepr`` header of each row."""
        pieces: list[Piece] = []
        for keyword, argument in self._kwargs.items():
            key = saferepr(keyword, limit, levels).encode()
            pieces += (b", ", key + b": ", self._shown(argument, limit, levels))
        return self._within([b"{", *pieces[1:], b"}"], limit, levels, self.kwargs_of)

    def _shown(self, argument: Argument, limit: int, levels: int) -> Piece:
        # in a tuple, because levels count from there; with twice the limit, a cut argument alone exceeds it
        return argument.shown(lambda value: saferepr((value,), 2 * limit, levels)[1:-2])

    def _within(self, pieces: list[Piece], limit: int, levels: int, whole: Callable[[int], Any]) -> pa.Array:
        """Return the joined pieces; for rows that reach the limit, their ``saferepr``."""
        joined = pc.cast(join(pieces, self._rows), pa.string())
        long = pc.greater_equal(pc.utf8_length(joined), limit)
        if not pc.any(long).as_py():
            return joined
        texts = joined.to_pylist()
        for row in pc.indices_nonzero(long).to_pylist():
            texts[row] = saferepr(whole(row), limit, levels)
        return strings(texts)


def _json_key(keyword: str) -> bytes:
    return json_quote(keyword).encode()


def _makes_text(template: Template) -> bool:
    """Return True if the serializer is Kombu's JSON, whose bodies are text."""
    return registry._encoders[template.serializer].encoder is json_dumps
