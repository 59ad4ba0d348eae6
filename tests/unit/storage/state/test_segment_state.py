"""Segments are counted with the checkpoint that has their messages, and released when the store has it."""

from __future__ import annotations

from kombu_opendata.storage.records import keys, payload
from kombu_opendata.storage.records.payload import SegmentUse
from kombu_opendata.storage.state.segment_state import SegmentState

PATH = "segments/0123456789abcdef-0.segment"
KEY = keys.segment_key(PATH)


class Batch:
    """What checkpoints write."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}

    def put_or_delete(self, key: bytes, value: bytes | None) -> None:
        self.records.pop(key, None)
        if value is not None:
            self.records[key] = value

    def use(self) -> SegmentUse | None:
        value = self.records.get(KEY)
        return None if value is None else payload.decode_segment(KEY, value)


def has_unused(state: SegmentState) -> bool:
    return state.has_unused


def test_a_checkpoint_counts_what_its_snapshot_had() -> None:
    state, batch = SegmentState(), Batch()
    state.add(PATH, 10)
    state.snapshot()
    state.add(PATH, 20)  # while the checkpoint is written
    assert state.is_dirty
    state.put_into(batch)  # type: ignore[arg-type]
    assert batch.use() == SegmentUse(1, 10)
    state.end_flush()
    state.snapshot()
    state.collect(PATH, 10)
    state.put_into(batch)  # type: ignore[arg-type]
    assert batch.use() == SegmentUse(1, 20)
    assert state.bytes == 20


def test_a_segment_is_released_when_the_store_has_the_deletion_of_its_last_message() -> None:
    state, batch = SegmentState(), Batch()
    state.add(PATH, 10)
    state.snapshot()
    state.collect(PATH, 10)
    state.put_into(batch)  # type: ignore[arg-type]
    assert batch.use() is None
    assert state.needs(PATH)
    assert state.release("") == []
    assert not state.is_unused(PATH)
    assert not has_unused(state)
    state.end_flush()
    assert has_unused(state)
    assert state.is_unused(PATH)
    assert state.release(PATH) == [], "it is open"
    state.add(PATH, 10)
    assert state.release("") == [], "it is used again"
    assert not has_unused(state)
    state.snapshot()
    assert state.release("") == []
    state.collect(PATH, 10)
    state.put_into(batch)  # type: ignore[arg-type]
    state.end_flush()
    assert state.release("") == [PATH]
    assert not has_unused(state)
    assert state.release("") == []
    assert not state.needs(PATH)


def test_a_message_of_a_segment_without_a_record_deletes_no_file() -> None:
    state, batch = SegmentState(), Batch()
    state.collect(PATH, 10)
    state.put_into(batch)  # type: ignore[arg-type]
    state.end_flush()
    assert state.release("") == []


def test_a_segment_that_was_used_again_waits_for_the_next_deletion() -> None:
    state, batch = SegmentState(), Batch()

    def checkpoint(collected: int) -> None:
        state.snapshot()
        for _ in range(collected):
            state.collect(PATH, 10)
        state.put_into(batch)  # type: ignore[arg-type]

    state.add(PATH, 10)
    checkpoint(1)
    state.end_flush()
    state.add(PATH, 10)
    checkpoint(0)
    state.end_flush()
    checkpoint(1)  # which the store does not have yet
    assert not state.is_unused(PATH)
    assert state.release("") == []
