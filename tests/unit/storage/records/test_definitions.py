"""Definitions of queues, exchanges and bindings."""

from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import definitions, keys

# ---- config
KEY = keys.config_key("q")


def test_round_trip() -> None:
    settings = definitions.QueueConfig("task = 'a'", 65535, 2**32 - 1)
    assert definitions.decode_config(KEY, definitions.encode_config(settings)) == settings


def test_refuses() -> None:
    for settings in (definitions.QueueConfig("", 65536, 0), definitions.QueueConfig("", 0, 2**32)):
        with pytest.raises(RequestError, match="max attempts"):
            definitions.encode_config(settings)
    with pytest.raises(CorruptRecord, match="filter type 02"):
        definitions.decode_config(KEY, b"\x02" + definitions.encode_config(definitions.QueueConfig("", 1, 2))[1:])


# ---- options
KEY_OF_OPTIONS = keys.options_key("q")


def test_round_trip_of_options() -> None:
    settings = definitions.QueueOptionsRecord(1209600, 60, 2**64 - 1, 3, {"x-max-priority": 10})
    assert definitions.decode_options(KEY_OF_OPTIONS, definitions.encode_options(settings)) == settings


def test_refuses_of_options() -> None:
    with pytest.raises(RequestError, match="lease_seconds"):
        definitions.encode_options(definitions.QueueOptionsRecord(0, 2**32, 0, 0, {}))
    with pytest.raises(CorruptRecord, match="not JSON"):
        definitions.decode_options(KEY_OF_OPTIONS, bytes(24) + b"\x00\x00")


# ---- topology
EXCHANGE = keys.exchange_key("e")
BINDING = keys.binding_key("e", "q", "k")


@pytest.mark.parametrize(("durable", "auto_delete", "flags"), [(0, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 3)])
def test_exchange_flags(durable: int, auto_delete: int, flags: int) -> None:
    exchange = definitions.ExchangeRecord("fanout", bool(durable), bool(auto_delete), {"x": ["é", None, 1.5]})
    stored = definitions.encode_exchange(exchange)
    assert stored[8] == flags
    assert definitions.decode_exchange(EXCHANGE, stored) == exchange


def test_unknown_flags_are_corrupt() -> None:
    stored = bytearray(definitions.encode_exchange(definitions.ExchangeRecord("topic", True, False, {})))
    stored[7] = 4
    with pytest.raises(CorruptRecord, match="flags 0x04"):
        definitions.decode_exchange(EXCHANGE, bytes(stored))


def test_binding() -> None:
    arguments = {"x-match": "all", "lang": "py"}
    assert definitions.decode_binding(BINDING, definitions.encode_binding(arguments)) == arguments
    assert definitions.encode_binding({}) == b"\x02\x00{}"
    with pytest.raises(RequestError):
        definitions.encode_binding({"x": {1, 2}})
