"""The msgspec serializer."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import Any

import pytest
from kombu import serialization
from kombu.exceptions import EncodeError

from kombu_opendata.celery_integration import serializer

# untyped
kombu: Any = serialization


@pytest.fixture(autouse=True)
def registered() -> Any:
    known = "msgspec" in kombu.registry.name_to_type
    if not known:
        kombu.registry.register("msgspec", *serializer.register_args)
    yield
    if not known:
        kombu.registry.unregister("msgspec")


def round_trip(value: Any) -> Any:
    content_type, encoding, data = kombu.dumps(value, serializer="msgspec")
    assert (content_type, encoding) == ("application/x-msgspec+json", "utf-8")
    return kombu.loads(data, content_type, encoding, accept={content_type})


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "ä", True, None], "b": {"c": []}},
        dt.datetime(2020, 1, 2, 3, 4, 5, 6),
        dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
        dt.date(2020, 1, 2),
        dt.time(3, 4),
        dt.timedelta(seconds=1.5),
        uuid.UUID(int=7),
        decimal.Decimal("1.10"),
        b"\x00\xff",
        2**80,
        -(2**70),
        math.inf,
        [{"deep": [(dt.date(2020, 1, 2), {"id": uuid.UUID(int=1)})]}],
        {"__type__": "unknown", "__value__": "kept"},
        {"text": 'a "__type__" in it'},
    ],
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    def lists(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [lists(i) for i in item]
        return {k: lists(v) for k, v in item.items()} if isinstance(item, dict) else item

    assert round_trip(value) == lists(value)


def test_nan() -> None:
    assert math.isnan(round_trip(math.nan))


def test_an_object_may_say_what_it_is_in_json() -> None:
    class Lazy:
        def __json__(self) -> str:
            return "said"

    assert round_trip([Lazy()]) == ["said"]


class Markup(str):
    """A string of its own type, as Django's templates and forms hand out."""

    __slots__ = ()


class Meters(int):
    pass


class Rate(float):
    pass


@pytest.mark.parametrize(
    "value", [Markup("<b>"), Meters(5), Rate(0.5), [Markup("x")], {"a": Meters(1)}, {Markup("k"): 1}]
)
@pytest.mark.parametrize("key", ["k", 1, 1.5, None, True, False])
def test_what_kombus_json_takes_is_taken(value: Any, key: Any) -> None:
    content_type, encoding, data = kombu.dumps({key: value}, serializer="json")
    usual = kombu.loads(data, content_type, encoding, accept={content_type})
    assert round_trip({key: value}) == usual


def test_what_has_no_form_is_named() -> None:
    with pytest.raises(EncodeError, match="object can't be represented in JSON"):
        kombu.dumps(object(), serializer="msgspec")


@pytest.mark.parametrize("kind", [str, bytearray, memoryview])
def test_any_buffer_is_read(kind: Any) -> None:
    data = serializer.dumps({"d": dt.date(2020, 1, 2)})
    assert serializer.loads(data.decode() if kind is str else kind(data)) == {"d": dt.date(2020, 1, 2)}
