"""What each kind of option takes, from a text and from a TOML file."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.configuration.kinds import (
    Choice,
    File,
    Flag,
    HostPort,
    Keep,
    Kind,
    ListenAddress,
    Memory,
    Mode,
    NumberKind,
    Seconds,
    Size,
    StoreKind,
    WholeNumberKind,
    Word,
)

KINDS: list[Kind[Any]] = [
    Choice("a"), File(), Flag(), HostPort(), Keep(), ListenAddress(), Memory(), NumberKind(), Seconds(), Size(),
    StoreKind(), WholeNumberKind(), Word("NAME"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Flag(), True, True),
        (Flag(), "Yes", True),
        (Flag(), "0", False),
        (WholeNumberKind(1, 9), 9, 9),
        (WholeNumberKind(1, 9), " 9 ", 9),
        (NumberKind(), "1.5", 1.5),
        (Seconds(), "1h30m", 5400.0),
        (Seconds(), "500ms", 0.5),
        (Seconds(), "1e-7", 1e-7),
        (Seconds(), 3, 3.0),
        (Size(), "20G", 20 << 30),
        (Size(), "1k", 1024),
        (Size(), 7, 7),
        (Keep(), "7d", 604_800.0),
        (Keep(), "settled", 0.0),
        (Keep(), "forever", math.inf),
        (Choice("DEBUG", "INFO"), "info", "INFO"),
        (StoreKind(), "s3://bucket/q", "s3://bucket/q"),
        (StoreKind(), "a b", "file:///srv/a%20b"),
        (File(), "users.toml", Path("/srv/users.toml")),
        (File(), "/etc/users.toml", Path("/etc/users.toml")),
    ],
)
def test_values(kind: Kind[Any], given: Any, value: Any) -> None:
    assert kind.read(given, "/srv") == value
    assert kind.read(kind.shown(value), "/srv") == value


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (Flag(), 1, "1 is neither true nor false"),
        (Flag(), "maybe", "'maybe' is neither true nor false"),
        (WholeNumberKind(1, 9), 0, "0 is out of range: give 1 to 9"),
        (WholeNumberKind(1, 9), "10", "'10' is out of range: give 1 to 9"),
        (WholeNumberKind(1), "0", "'0' is out of range: give at least 1"),
        (WholeNumberKind(), 1.0, "1.0 is not a whole number"),
        (Mode(), 0o660, "'432' is not the mode of a socket: write 0600, 0660 or 0666, in a file in quotes"),
        (WholeNumberKind(), True, "true is not a whole number"),
        (WholeNumberKind(), "٣", "'٣' is not a whole number"),
        (WholeNumberKind(), "9" * 5000, "is not a whole number"),
        (NumberKind(), "nan", "'nan' is not a number"),
        (NumberKind(), math.inf, "inf is not a number"),
        (Seconds(), 2e10, "20000000000.0 is out of range: give at most 10,000,000,000"),
        (Seconds(above=0), 0, "0 is out of range: give more than 0"),
        (Seconds(), "soon", "'soon' is not a time: write a number of seconds, or 500ms, 30s, 2h, 7d, 1h30m"),
        (Size(), "lots", "'lots' is not a size: write a number of bytes, or 500M, 20G, 1T"),
        (Size(), "16MB", "'16MB' is not a size: write a number of bytes, or 500M, 20G, 1T; do you mean 16M?"),
        (Size(), "2 gib", "; do you mean 2G?"),
        (Memory(), "160MB", "such as 500M or 4G, nor a part of the memory, such as 40%; do you mean 160M?"),
        (Size(), "9" * 18 + "T", "is out of range: give at most 1,152,921,504,606,846,976"),
        (Keep(), "0s", "'0s' is not a time to keep anything: write 7d, settled or forever"),
        (Keep(), 7, "7 is not a duration: write 90s, 30m, 2h, 30d, 1w, or 1h30m"),
        (Choice("a", "b"), "c", "'c' is not one of a, b"),
        (File(), "", "'' is not the name of a file"),
        (StoreKind(), "", "'' is not a store: give a folder, or a URL such as s3://bucket/prefix"),
        (StoreKind(), 5, "5 is not a text"),
        (File(), 5, "5 is not a text"),
        (Word("NAME"), "a b", "'a b' is not a name"),
    ],
)
def test_what_is_refused(kind: Kind[Any], given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        kind.read(given)
    assert text in str(refused.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_values_that_no_option_takes(kind: Kind[Any]) -> None:
    for value in (date(2026, 11, 21), [1], {"a": 1}, math.nan, -1.5, None):
        with pytest.raises(ValueError, match=r"."):
            kind.read(value)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ValueError, match="…") as refused:
        Flag().read("x" * 10_000)
    assert len(str(refused.value)) < 200
