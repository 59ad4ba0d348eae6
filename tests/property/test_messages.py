"""The wire protocol: every message round-trips, and no damage to a frame raises anything but a ProtocolError."""

from __future__ import annotations

import enum
import types
import typing
from typing import Annotated, Any, ClassVar, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kombu_opendata.errors import ProtocolError
from kombu_opendata.protocol.framing import FrameReader, Refused, broker_messages, client_messages, frame
from kombu_opendata.protocol.messages import BrokerMessage, ClientMessage
from kombu_opendata.protocol.messages.message_base import WireMessage

CLIENT: tuple[type[WireMessage], ...] = get_args(ClientMessage)
ALL = [*CLIENT, *get_args(BrokerMessage)]
_INTS = st.integers(-(2**63), 2**63 - 1)
_TEXTS = st.text(max_size=8)
_PLAIN = st.recursive(
    st.none() | st.booleans() | _INTS | _TEXTS | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=4,
)
_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: _INTS, str: _TEXTS, bytes: st.binary(max_size=8), bool: st.booleans(), float: st.floats(allow_nan=False),
    type(None): st.none(), Any: _PLAIN, msgspec.Raw: _PLAIN.map(msgspec.msgpack.encode).map(msgspec.Raw),
}  # fmt: skip


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if origin is Annotated:
        return st.integers(inner[1].ge, 2**63 - 1) if inner[1].ge is not None else values(inner[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, inner))
    if origin in (list, set, frozenset) or kind in (list, set):
        made = st.lists(values(inner[0]) if inner else _PLAIN, max_size=2)
        return made if origin is list else made.map(origin or kind)
    if origin is dict or kind is dict:
        key, value = map(values, inner or (str, Any))
        return st.dictionaries(key, value, max_size=2)
    if origin is tuple:
        if inner[-1:] == (...,):
            return st.lists(values(inner[0]), max_size=2).map(tuple)
        return st.tuples(*map(values, inner))
    if typing.is_typeddict(kind):
        return st.fixed_dictionaries({name: values(of) for name, of in typing.get_type_hints(kind).items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    fields = typing.get_type_hints(kind, include_extras=True)  # of a struct, a named tuple or a dataclass
    return st.builds(kind, **{name: values(of) for name, of in fields.items() if get_origin(of) is not ClassVar})


def reader(kind: type[WireMessage]) -> FrameReader[Any]:
    is_client = kind in CLIENT
    return FrameReader(client_messages if is_client else broker_messages, 1 << 20, bounded=is_client)


def read(kind: type[WireMessage], data: bytes) -> list[Any]:
    return list(reader(kind).feed(data))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_every_message_round_trips_also_with_a_field_of_a_later_version(
    kind: type[WireMessage], data: st.DataObject
) -> None:
    message = data.draw(values(kind))
    fields = msgspec.msgpack.decode(frame(message)[4:], strict=False)
    later = msgspec.msgpack.encode([*fields, "new"])
    for sent in (frame(message), len(later).to_bytes(4, "little") + later):
        (found,) = read(kind, sent)
        assert type(found) is kind
        assert frame(found) == frame(message)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_a_damaged_message_is_refused_or_another_one(kind: type[WireMessage], data: st.DataObject) -> None:
    body = bytearray(frame(data.draw(values(kind)))[4:])
    place = data.draw(st.integers(0, len(body) - 1))
    match data.draw(st.sampled_from(["changed", "cut", "more"])):
        case "changed":
            body[place] = data.draw(st.integers(0, 255))
        case "cut":
            del body[place:]
        case _:
            body[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    try:
        found = read(kind, len(body).to_bytes(4, "little") + body)
    except ProtocolError:
        return
    assert all(isinstance(one, (WireMessage, Refused)) for one in found)
