"""Staged batches for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kombu_opendata.protocol.envelope import encode_fields
from kombu_opendata.staging import BatchInfo, BatchWriter, StagingTarget


def envelope(body: bytes, exchange: str = "", routing_key: str = "q", headers: dict[str, Any] | None = None) -> bytes:
    """As a client makes them."""
    return encode_fields((body, "application/data", "binary", headers or {}, {}, exchange, routing_key))


def headers(routing_key: str = "q", **more: str) -> dict[str, str]:
    """Metadata headers of a message."""
    return {"exchange": "", "routing_key": routing_key, "priority": "0", **more}


def stage(
    target: StagingTarget, job_id: str, parts: Sequence[Iterable[bytes]], *, attempt: int = 0, **fields: Any
) -> list[BatchInfo]:
    """A batch for each part, with these bodies, for queue ``q`` unless fields say otherwise."""
    key = fields.pop("routing_key", "q")
    found = []
    for partition, bodies in enumerate(parts):
        writer = BatchWriter(target, job_id, partition, attempt)
        for number, body in enumerate(bodies):
            writer.add(envelope(body), headers(key, id=f"{partition}-{number}"), routing_key=key, **fields)
        found.append(writer.close())
    return found


def as_objects(target: StagingTarget) -> StagingTarget:
    """The target, with nothing going inline."""
    return StagingTarget(target.url, target.instance, target.options, target.max_message_bytes, 0, 0)
