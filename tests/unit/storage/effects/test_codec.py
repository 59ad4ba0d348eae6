"""Effects as the journal has them: their arrays, with and without the fields that may be missing."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage.effects import Effect, codec
from kombu_opendata.storage.effects.definitions import DeclareQueueEffect, UnbindEffect
from kombu_opendata.storage.effects.deliveries import (
    ClaimAgainEffect,
    ClaimEffect,
    FailEffect,
    GiveUpEffect,
    RemoveEffect,
    RemoveForEffect,
    RenewEffect,
    ReturnEffect,
    ReturnExpiredEffect,
    ReturnLaterEffect,
)
from kombu_opendata.storage.effects.message_moves import RouteEffect
from kombu_opendata.storage.effects.publishes import NameOwnedSessionEffect, NameSessionEffect
from kombu_opendata.storage.effects.staged_jobs import (
    CommitStagedEffect,
    CommitStagedJobEffect,
    RouteStagedEffect,
    StagedChunk,
)
from kombu_opendata.storage.effects.tasks import AddToChordEffect, OpenChordEffect
from kombu_opendata.storage.records.routing_cursor import Cursor
from kombu_opendata.storage.state.queue_buckets import QueueRow
from kombu_opendata.storage.state.settled_list import Taken
from kombu_opendata.storage.state.staged_state import NO_OPTIONS, JobOptions, StagedBatch

CURSOR = Cursor(1, 2, 3, 4, 5, 6, 7, 8, 9, True, False, "a = 1")


@pytest.mark.parametrize(
    ("effect", "fields"),
    [
        (ClaimEffect("q", b"s", 5, 6, [1, 0]), [3, "q", b"s", 5, 6, [1, 0]]),
        (ClaimAgainEffect("q", b"s", 5, 6, [1, 0], 1), [3, "q", b"s", 5, 6, [1, 0], 1]),
        (ReturnEffect("q", 5, [1, 0], True, "w"), [5, "q", 5, [1, 0], True, "w"]),
        (ReturnLaterEffect("q", 5, [1, 0], True, "w", 9), [5, "q", 5, [1, 0], True, "w", 9]),
        (ReturnExpiredEffect("q", 5, [1, 0], True, "w", 0, True), [5, "q", 5, [1, 0], True, "w", 0, True]),
        (FailEffect("q", 5, [1, 0], "w", ""), [6, "q", 5, [1, 0], "w", ""]),
        (GiveUpEffect("q", 5, [1, 0], "w", "", True, False), [6, "q", 5, [1, 0], "w", "", True, False]),
        (RemoveEffect("q", [1, 0], "expired", 5), [7, "q", [1, 0], "expired", 5]),
        (RemoveForEffect("q", [1, 0], "", 5, "maxlen"), [7, "q", [1, 0], "", 5, "maxlen"]),
        (RenewEffect(b"s", 5, 5), [8, b"s", 5, 5]),
        (DeclareQueueEffect("q", 20, 1, 2, 60, {"x": 1}, 5), [9, "q", 20, 1, 2, 60, {"x": 1}, 5]),
        (OpenChordEffect(b"g", 0, 2, 0, b"", True, b"b"), [52, b"g", 0, 2, 0, b"", True, b"b"]),
        (AddToChordEffect(b"g", 0, -1, 1, b"", False, b"", b"m"), [52, b"g", 0, -1, 1, b"", False, b"", b"m"]),
        (NameSessionEffect.of(b"s", "n", ""), [15, b"s", "n"]),
        (NameSessionEffect.of(b"s", "n", "eve"), [15, b"s", "n", "eve"]),
        (
            RouteEffect("q", CURSOR, 5, [QueueRow(1, 0, 255, 5, 0, 0)], [Taken("done", 0, [1])]),
            [41, "q", list(CURSOR), 5, [[1, 0, 255, 5, 0, 0]], [["done", 0, [1]]]],
        ),
        (CommitStagedEffect("job", 5, 1, [StagedBatch("p", 2, 3, 4)]), [48, "job", 5, 1, [["p", 2, 3, 4]]]),
        (
            CommitStagedJobEffect("job", 5, 1, [], JobOptions("d", 0.5, b"e")),
            [48, "job", 5, 1, [], ["d", 0.5, b"e"]],
        ),
        (
            RouteStagedEffect.of(StagedChunk("job", 1, 6, 5, "p", 0, 2, b"b", b""), [["q"]], [0, 2], {"q": [0, 2]}),
            [49, "job", 1, 6, 5, "p", 0, 2, b"b", b"", [["q"]], [0, 2], {"q": [0, 2]}],
        ),
    ],
)
def test_an_effect_is_an_array_of_its_number_and_its_fields(effect: Effect, fields: list[Any]) -> None:
    payload = codec.encode([effect])
    assert msgspec.msgpack.decode(payload) == [fields]
    (decoded,) = codec.decode(payload)
    assert isinstance(decoded, type(effect))
    assert msgspec.structs.astuple(decoded)[: len(fields) - 1] == msgspec.structs.astuple(effect)


@pytest.mark.parametrize(
    ("fields", "effect"),
    [
        ([7, "q", [1, 0], ""], RemoveForEffect("q", [1, 0], "", 0, "")),
        ([6, "q", 5, [1, 0], "w", "", True], GiveUpEffect("q", 5, [1, 0], "w", "", True, False)),
        ([9, "q", 20, 1, 2, 60, {}], DeclareQueueEffect("q", 20, 1, 2, 60, {}, 0)),
        ([8, b"s", 6], RenewEffect(b"s", 6, 0)),
        ([15, b"s", "n"], NameOwnedSessionEffect(b"s", "n", "")),
        ([14, "q", "e", "k"], UnbindEffect("q", "e", "k", None)),
        ([48, "job", 5, 1, []], CommitStagedJobEffect("job", 5, 1, [], NO_OPTIONS)),
        ([52, b"g", 0, 2, 0, b"", True], AddToChordEffect(b"g", 0, 2, 0, b"", True, b"", b"")),
        ([52, b"g", 0, 2, 0, b"", True, b"b"], AddToChordEffect(b"g", 0, 2, 0, b"", True, b"b", b"")),
    ],
)
def test_a_field_that_an_older_version_did_not_write(fields: list[Any], effect: Effect) -> None:
    assert codec.decode(msgspec.msgpack.encode([fields])) == [effect]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91\x92\xcc\xff\x00", b"\x91\x91\x04"])
def test_what_is_no_effect_is_a_corrupt_record(payload: bytes) -> None:
    with pytest.raises(CorruptRecord, match="does not decode"):
        codec.decode(payload)


def test_every_kind_is_decoded_in_its_longest_form() -> None:
    found: list[type[Effect]] = []
    left = [Effect]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        tags = {longer.__struct_config__.tag for longer in kind.__subclasses__()}
        if kind.__struct_config__.tag is not None and kind.__struct_config__.tag not in tags:
            found.append(kind)
    assert set(found) == set(get_args(codec.Stored))
