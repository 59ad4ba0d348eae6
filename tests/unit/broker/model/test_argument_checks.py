"""The table of queue arguments, and its documentation."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.broker.model import argument_checks
from kombu_opendata.broker.model.argument_checks import difference, parse, parse_stored, unknown
from kombu_opendata.errors import RequestError
from kombu_opendata.protocol.queue_arguments import KNOWN, Argument, QueueArguments
from kombu_opendata.queue_client import QueueOptions
from kombu_opendata.storage.state.queue_buckets import DeadlineRules
from kombu_opendata.storage.state.store_state import QueueSettings

PAGE = Path(__file__).parents[4] / "docs" / "queue-arguments.md"

#: argument, what it takes, what it does not
VALUES: list[tuple[str, list[Any], list[Any]]] = [
    ("x-message-ttl", [0, 1, 1 << 40], [-1, True, 1.5, "1", None, 1 << 53]),
    ("x-expires", [1, 1 << 40], [0, -1, False, "1"]),
    ("x-max-length", [0, 1], [-1, True, "1"]),
    ("x-max-length-bytes", [0, 1], [-1, True, "1"]),
    ("x-overflow", ["drop-head", "reject-publish", "reject-publish-dlx"], ["", "drop", 1, None]),
    ("x-dead-letter-exchange", ["", "dead"], [1, None, b"dead"]),
    ("x-dead-letter-routing-key", ["", "dead"], [1, None]),
    ("x-single-active-consumer", [True, False], [1, 0, "true", None]),
    ("x-delivery-limit", [-1, 1, 65_535], [-2, 0, 65_536, True, "1"]),
    ("x-retry-delay", [0, 1], [-1, True, "1"]),
    ("x-done-retention", [0, 0xFFFF_FFFF], [-1, 1 << 32, False]),
    ("x-failed-retention", [0, 0xFFFF_FFFF], [-1, 1 << 32, False]),
    ("x-lease", [30, 86_400], [0, 29, 86_401, "60"]),
    (
        "x-start",
        ["now", "first", 0, 7, "2026-01-31T12:00:00Z", "2026-01-31 12:00:00.5+01:00"],
        ["", "then", "7", "2026-01-31", "2026-01-31T12:00:00", -1, 1.5, True, None, 1 << 63, "20260131"],
    ),
    ("x-filter", ["a = 1", "topic(routing_key, '#')"], [1, None, True, b"a = 1"]),
    ("x-filter-mode", ["any", "all"], ["", "some", 1, None]),
    ("x-partition-by", ["tenant", "x-tenant", '"my tenant"', "a > 5", "n / 10"], [1, None, True, b"a"]),
    (
        "x-partition-weights",
        [{"gold": 4, "*": 1}, {"": 1000}],
        [{}, {"a": 0}, {"a": -1}, {"a": True}, {"a": 1.5}, {"a": 1001}, {1: 1}, [], "a", None],
    ),
    ("x-partition-concurrency", [1, 100], [0, -1, True, "1"]),
    (
        "x-partition-rate",
        ["1/s", "100/m", "5/h", "7/d", "100/m:20", "1/d:3650"],
        ["0/m", "100", "1/w", "-1/s", "1/s:0", "1/d:3651", 5, None],
    ),
    ("x-concurrency", [1, 100], [0, -1, True, "1"]),
    ("x-rate", ["1/s", "100/m"], ["0/s", "", 1, None]),
    ("x-max-priority", [1, 10, 255], [0, 256, 300, True, "high"]),
    ("x-queue-type", ["classic", "quorum"], ["stream", 1]),
    ("x-queue-mode", ["default", "lazy"], ["eager"]),
    ("x-queue-version", [1, 2], [0, 3]),
    ("x-queue-master-locator", ["min-masters"], [1]),
    ("x-queue-leader-locator", ["balanced"], [1]),
    ("x-quorum-initial-group-size", [1, 5], [0, "3"]),
    ("x-quorum-target-group-size", [1, 5], [0, "3"]),
    ("x-max-in-memory-length", [0], [-1]),
    ("x-max-in-memory-bytes", [0], [-1]),
    ("x-consumer-timeout", [0, 1], [-1, "1"]),
    ("x-dead-letter-strategy", ["at-most-once", "at-least-once"], ["never"]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, good, _bad in VALUES for value in good])
def test_what_an_argument_takes(name: str, value: Any) -> None:
    (argument,) = (each for each in KNOWN if each.name == name)
    given, fields = {name: value}, {argument.field: value} if argument.field else {}
    if name == "x-dead-letter-routing-key":
        given["x-dead-letter-exchange"] = fields["dead_letter_exchange"] = ""
    if name == "x-filter-mode":
        given["x-filter"] = fields["filter"] = "a = 1"
    if argument.field.startswith("partition_") and argument.field != "partition_by":
        given["x-partition-by"] = fields["partition_by"] = "tenant"
    assert parse("q", given) == QueueArguments()._replace(**fields)
    assert unknown("queue", "q", {name: value}) == []


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, _good, bad in VALUES for value in bad])
def test_what_an_argument_does_not_take(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse("my queue", {name: value})
    text = str(caught.value)
    assert text.startswith(f"queue 'my queue': {name} must be ")
    assert text.endswith(f", not {value!r}")
    assert (caught.value.queue, caught.value.argument) == ("my queue", name)
    assert parse_stored("my queue", {name: value}) == QueueArguments()


@pytest.mark.parametrize(
    "argument",
    [each for each in KNOWN if each.kind is not object and each.check is None],
    ids=lambda each: each.name,
)
def test_the_bounds_of_every_argument(argument: Argument) -> None:
    good: dict[type, list[Any]] = {int: [argument.low, argument.high], bool: [True, False], str: ["x"]}
    bad: dict[type, list[Any]] = {
        int: [argument.low - 3, argument.high + 1, True, "1"],
        bool: [1, "true"],
        str: [1, None, *["x"] * bool(argument.choices)],
    }
    assert all(map(argument.takes, argument.choices or good[argument.kind]))
    assert not any(map(argument.takes, bad[argument.kind]))


def test_every_field_is_an_argument() -> None:
    assert {argument.field for argument in KNOWN} - {""} == set(QueueArguments._fields)


@pytest.mark.parametrize(
    "given",
    [
        {"x-retry-max-delay": 5},
        {"x-retry-delay": 0, "x-retry-max-delay": 5},
        {"x-retry-delay": 6, "x-retry-max-delay": 5},
    ],
)
def test_a_longest_delay_without_or_below_the_first(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"x-retry-max-delay must be .* not 5"):
        parse("q", given)
    assert parse_stored("q", given).retry_max_delay_ms == 0
    assert parse("q", {"x-retry-delay": 5, "x-retry-max-delay": 5})[9:11] == (5, 5)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x-dead-letter-routing-key": "k"}, "an x-dead-letter-routing-key and no x-dead-letter-exchange"),
        ({"x-dead-letter-exchange": "é" * 128}, "x-dead-letter-exchange has 256 bytes, the limit is 255"),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256},
            "x-dead-letter-routing-key has 256 bytes, the limit is 255",
        ),
    ],
)
def test_dead_letter_arguments_that_do_not_fit(given: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        parse("q", given)
    assert parse_stored("q", given) == QueueArguments()


@pytest.mark.parametrize(
    ("given", "argument", "text"),
    [
        ({"x-filter-mode": "all"}, "x-filter-mode", "queue 'q' has an x-filter-mode and no x-filter: give both"),
        ({"x-filter": "a = "}, "x-filter", "queue 'q': x-filter, line 1, column 5: expected a header"),
        ({"x-filter": "a = '" + "x" * 20_000 + "'"}, "x-filter", "the filter has 20006 bytes; the limit is 16384"),
    ],
)
def test_filters_that_are_none(given: dict[str, Any], argument: str, text: str) -> None:
    with pytest.raises(RequestError, match=text) as caught:
        parse("q", given)
    assert (caught.value.queue, caught.value.argument) == ("q", argument)
    assert parse_stored("q", given) == QueueArguments()


@pytest.mark.parametrize(
    ("given", "argument", "text"),
    [
        ({"x-partition-by": "a ="}, "x-partition-by", "queue 'q': x-partition-by, line 1, column 4: expected"),
        ({"x-partition-by": ""}, "x-partition-by", "queue 'q': x-partition-by, .* is empty"),
        ({"x-partition-by": "f(a)"}, "x-partition-by", "there is no function f"),
        ({"x-partition-rate": "1/s"}, "x-partition-rate", "an x-partition-rate and no x-partition-by: give both"),
        ({"x-partition-weights": {"*": 1}}, "x-partition-weights", "no x-partition-by: give both"),
    ],
)
def test_partitions_that_are_none(given: dict[str, Any], argument: str, text: str) -> None:
    with pytest.raises(RequestError, match=text) as caught:
        parse("q", given)
    assert (caught.value.queue, caught.value.argument) == ("q", argument)
    assert parse_stored("q", given) == QueueArguments()


def test_only_unknown_x_arguments_are_warned_of() -> None:
    given = {"x-colour": "a = 1", "x-message-ttl": 1, "note": 1}
    assert unknown("queue", "q", given) == ["queue 'q': the argument 'x-colour' is unknown and has no effect"]
    assert parse("q", given).message_ttl_ms == 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("x-max-lenght", "x-max-length"),
        ("x-max_length", "x-max-length"),
        ("max-length", "x-max-length"),
        ("x-ttl", ""),
        ("x-message-tll", "x-message-ttl"),
        ("x-" + "max-lenght" * 1000, ""),
    ],
)
def test_the_name_that_was_probably_meant(given: str, meant: str) -> None:
    (warning,) = unknown("queue", "q", {given: 1})
    assert warning.removeprefix(f"queue 'q': the argument {given!r} is unknown and has no effect") == (
        f"; did you mean {meant!r}?" if meant else ""
    )


def test_a_declaration_full_of_misspelt_arguments_costs_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(name: str, *_args: Any, **_more: Any) -> list[str]:
        compared.append(name)
        return []

    monkeypatch.setattr(argument_checks, "get_close_matches", compare)
    assert len(unknown("queue", "q", [f"x-max-lenght-{n}" for n in range(10_000)])) == 10_000
    assert len(compared) < 10


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ({"x-a": 1, "x-b": 1}, {"x-a": 1, "x-b": 2}, ("x-b", "with x-b=1", "with x-b=2")),
        ({}, {"x-b": 2}, ("x-b", "without x-b", "with x-b=2")),
        ({"x-b": None}, {}, ("x-b", "with x-b=None", "without x-b")),
    ],
)
def test_what_differs(have: dict[str, Any], want: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert difference(have, want) == expected


def test_a_durable_queues_settings() -> None:
    given = {"x-delivery-limit": -1, "x-done-retention": 0, "x-failed-retention": 7, "x-lease": 90}
    assert QueueSettings.of(parse("q", given), given) == QueueSettings(65_535, 0, 7, 90, given)
    assert QueueSettings.of(parse("q", {}), {}) == QueueSettings()


@pytest.mark.parametrize(
    ("overflow", "exchange", "rejects"),
    [
        ("drop-head", None, False),
        ("reject-publish", None, True),
        ("reject-publish", "dead", True),
        ("reject-publish-dlx", None, True),
        ("reject-publish-dlx", "dead", False),
    ],
)
def test_what_a_full_queue_does(overflow: str, exchange: str | None, rejects: bool) -> None:
    assert QueueArguments(overflow=overflow, dead_letter_exchange=exchange).rejects is rejects


def test_the_documentation_has_the_reasons_of_refused_changes() -> None:
    text = " ".join(PAGE.read_text().split())
    assert all(f"`{a.name}`: {a.cannot_alter}" in text for a in KNOWN if a.field and a.cannot_alter)


def test_every_option_of_the_client_is_an_argument() -> None:
    others = {"durable", "auto_delete", "exclusive", "arguments"}
    assert {a.option for a in KNOWN if a.option} | others == {field.name for field in fields(QueueOptions)}


# ------------------------------------------------------------------ what the storage takes from them
def test_limits_ignore_what_was_never_checked() -> None:
    assert DeadlineRules.of(
        {"x-message-ttl": "1", "x-retry-delay": True, "x-max-length-bytes": -1}
    ) == DeadlineRules.of({})


@pytest.mark.parametrize(("attempts", "delay"), [(1, 100), (2, 200), (3, 400), (4, 500), (65_535, 500)])
def test_delays_double_up_to_the_longest(attempts: int, delay: int) -> None:
    limits = DeadlineRules.of({"x-retry-delay": 100, "x-retry-max-delay": 500})
    assert limits.retry_at(1000, attempts) == 1000 + delay
    assert DeadlineRules().retry_at(1000, attempts) == 0


@pytest.mark.parametrize(
    ("own", "visible", "expected"),
    [(0, 0, 1050), (1040, 0, 1040), (1060, 0, 1050), (0, 1010, 1060), (1020, 1010, 1020)],
)
def test_the_earlier_deadline_counts(own: int, visible: int, expected: int) -> None:
    assert DeadlineRules(message_ttl_ms=50).deadline(own, visible, 1000) == expected
