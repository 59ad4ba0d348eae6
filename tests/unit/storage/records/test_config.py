from __future__ import annotations

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import config, keys

KEY = keys.config_key("q")


def test_round_trip() -> None:
    settings = config.QueueConfig("task = 'a'", 65535, 2**32 - 1)
    assert config.decode(KEY, config.encode(settings)) == settings


def test_refuses() -> None:
    for settings in (config.QueueConfig("", 65536, 0), config.QueueConfig("", 0, 2**32)):
        with pytest.raises(RequestError, match="max attempts"):
            config.encode(settings)
    with pytest.raises(CorruptRecord, match="filter type 02"):
        config.decode(KEY, b"\x02" + config.encode(config.QueueConfig("", 1, 2))[1:])
