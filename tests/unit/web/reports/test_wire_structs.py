"""Structs of the protocol in reports: their JSON, its description, and copies of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from pydantic import TypeAdapter

from kombu_opendata.protocol.messages import QueueStatus
from kombu_opendata.web.reports.wire_structs import WireStruct, copied

STATUS = QueueStatus("mail", "running", 2, 1_700_000_000_000, "w@host", 0)


@dataclass(frozen=True)
class Place:
    queue: str
    at: datetime | None
    visible_at: datetime | None
    label: str


def test_a_struct_is_returned_as_it_is_described() -> None:
    adapter = TypeAdapter(tuple[Annotated[QueueStatus, WireStruct()], ...])
    [returned] = adapter.dump_python((STATUS,), mode="json")
    assert returned == {
        "queue": "mail", "status": "running", "attempts": 2, "at": "2023-11-14T22:13:20Z", "consumer": "w@host",
        "visible_at": None,
    }  # fmt: skip
    described = adapter.json_schema(mode="serialization")["$defs"]["QueueStatus"]
    assert set(described["properties"]) == set(returned) == set(described["required"])


def test_a_copy_has_times_in_place_of_milliseconds() -> None:
    assert copied(Place, STATUS, label="x") == Place("mail", datetime.fromtimestamp(1_700_000_000, UTC), None, "x")
