"""The program of docs/capacity.md that spreads tasks over brokers by hand."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any
from zlib import crc32

from celery import Celery

PAGE = Path(__file__).resolve().parents[2] / "docs" / "capacity.md"


def test_each_key_goes_to_one_of_two_brokers() -> None:
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    urls = ["opendata+memory://shard-0", "opendata+memory://shard-1"]
    app = Celery("shards", broker=urls[0], set_as_current=False)

    @app.task(name="process_order")
    def process_order(key: str, number: int) -> None: ...

    names: dict[str, Any] = {"app": app, "urls": urls, "crc32": crc32, "process_order": process_order}
    exec(textwrap.dedent(program[1]), names)
    keys = [f"customer-{number}" for number in range(20)]
    for number, key in enumerate(keys * 2):
        names["send"](key, number)
    for place, shard in enumerate(names["shards"]):
        found: dict[str, list[int]] = {}
        with shard.channel() as channel:
            while (message := channel.basic_get("celery", no_ack=True)) is not None:
                key, number = message.payload[0]
                found.setdefault(key, []).append(number)
        assert found == {key: [at, at + 20] for at, key in enumerate(keys) if crc32(key.encode()) % 2 == place}
        assert found, "some keys go to each broker"
        shard.release()
