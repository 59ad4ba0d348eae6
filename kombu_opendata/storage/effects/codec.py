"""The journal record of a commit: its effects as a msgpack array."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import GenericAlias
from typing import Any, Union

import msgspec

from ...errors import CorruptRecord
from . import Effect, definitions, deliveries, message_moves, publishes, staged_jobs, tasks

Commit = Sequence[Effect]


def _longest_forms() -> list[type[Effect]]:
    """Return the effects of all modules, of those with the same tag the one with the most fields."""
    forms: dict[Any, type[Effect]] = {}
    for module in (definitions, deliveries, message_moves, publishes, staged_jobs, tasks):
        for form in vars(module).values():
            if isinstance(form, type) and issubclass(form, Effect) and form.__module__ == module.__name__:
                tag = form.__struct_config__.tag
                if tag is not None and (tag not in forms or issubclass(form, forms[tag])):
                    forms[tag] = form
    return list(forms.values())


#: the longest form of each effect
Stored: Any = Union[tuple(_longest_forms())]  # noqa: UP007 - the effects are not named here

#: the journal record of one commit: ``encode(effects)``
encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[list[Effect]] = msgspec.msgpack.Decoder(GenericAlias(list, (Stored,)))


def decode(payload: bytes) -> Commit:
    """Decode the effects of a journal record.

    Raises:
        CorruptRecord: the bytes are not effects that this version knows.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise CorruptRecord(f"a journal record does not decode: {exc}", key=b"", offset=0) from exc


def unsynced(payload: bytes) -> int | None:
    """Return the number of unsynced records before this one when it was written; None if the record lacks it."""
    with contextlib.suppress(CorruptRecord):
        last = decode(payload)[-1:]
        if last and isinstance(last[0], publishes.SyncedTimeEffect) and last[0].unsynced >= 0:
            return last[0].unsynced
    return None
