"""The ids of revoked tasks in commands of Celery's remote control."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.revocation import revoked_ids


def command(method: str = "revoke", task_id: Any = "t", **fields: Any) -> bytes:
    arguments = {"task_id": task_id, "terminate": False, "signal": "SIGTERM"}
    body = {"method": method, "arguments": arguments, "destination": None, "pattern": None, "matcher": None, **fields}
    return envelope(json.dumps(body))


def envelope(body: str | bytes) -> bytes:
    return encode_envelope(body, "application/json", "utf-8", {}, {}, "celery.pidbox", "")


@pytest.mark.parametrize(
    ("encoded", "ids"),
    [
        (command(), ["t"]),
        (command(task_id=["t", "u", 7]), ["t", "u"]),
        (command(task_id=None), []),
        (command("ping"), []),
        (command("revoke_by_stamped_headers", headers={"a": 1}), []),
        (command(destination=["worker@host"]), []),
        (command(pattern="worker*", matcher="glob"), []),
        (envelope(command()), []),
        (envelope(json.dumps({"method": "revoke"})), []),
        (envelope('{"method": "revoke", "arguments": {"task_id": ' + "[" * 100_000), []),
        (b"no envelope", []),
    ],
)
def test_ids_that_are_revoked_for_all_workers(encoded: bytes, ids: list[str]) -> None:
    assert revoked_ids(encoded) == ids
