"""The checked-in bytes of a staged batch: what is written is this, and this is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kombu_opendata.staging import BatchInfo, BatchWriter, StagingTarget
from kombu_opendata.staging.batch_reader import read_inline

VECTOR: dict[str, Any] = json.loads(Path(__file__).with_name("batch.json").read_text())


def written() -> BatchInfo:
    target = StagingTarget("file:///store/default.staged", "default")
    writer = BatchWriter(target, VECTOR["job_id"], VECTOR["partition"], VECTOR["attempt"], token=VECTOR["token"])
    for row in VECTOR["rows"]:
        writer.add(bytes.fromhex(row["envelope_hex"]), **{k: v for k, v in row.items() if k != "envelope_hex"})
    return writer.close()


def test_a_batch_is_written_as_it_was() -> None:
    info = written()
    assert info.data.hex() == VECTOR["object_hex"]
    assert (info.uri, info.rows, info.checksum) == (VECTOR["uri"], len(VECTOR["rows"]), VECTOR["checksum"])


def test_a_batch_of_then_is_read() -> None:
    data = bytes.fromhex(VECTOR["object_hex"])
    info = BatchInfo(VECTOR["uri"], len(VECTOR["rows"]), len(data), VECTOR["checksum"], data=data)
    ((_encoded, block, payload),) = read_inline(info, "default", VECTOR["job_id"], 1 << 20)
    assert payload.hex() == "".join(row["envelope_hex"] for row in VECTOR["rows"])
    assert (block.exchange, block.routing_key, block.priority) == ("", ["celery", "celery", "billing"], [0, 9, 0])
    assert (block.constants, block.columns) == ({"task": "app.añadir"}, {"id": ["1", "2", None]})
    assert (block.visible_at_ms, block.ttl_ms, block.created_at_ms) == ([0, 0, 1769385660000], -1, 1769385600000)
