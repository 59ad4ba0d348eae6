from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import keys, topology

EXCHANGE = keys.exchange_key("e")
BINDING = keys.binding_key("e", "q", "k")


@pytest.mark.parametrize(("durable", "auto_delete", "flags"), [(0, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 3)])
def test_exchange_flags(durable: int, auto_delete: int, flags: int) -> None:
    exchange = topology.ExchangeRecord("fanout", bool(durable), bool(auto_delete), {"x": ["é", None, 1.5]})
    stored = topology.encode_exchange(exchange)
    assert stored[8] == flags
    assert topology.decode_exchange(EXCHANGE, stored) == exchange


def test_unknown_flags_are_corrupt() -> None:
    stored = bytearray(topology.encode_exchange(topology.ExchangeRecord("topic", True, False, {})))
    stored[7] = 4
    with pytest.raises(CorruptRecord, match="flags 0x04"):
        topology.decode_exchange(EXCHANGE, bytes(stored))


def test_binding() -> None:
    arguments = {"x-match": "all", "lang": "py"}
    assert topology.decode_binding(BINDING, topology.encode_binding(arguments)) == arguments
    assert topology.encode_binding({}) == b"\x02\x00{}"
    with pytest.raises(RequestError):
        topology.encode_binding({"x": {1, 2}})
