"""Types of headers: a consumer gets those that were sent, as over RabbitMQ and Redis."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import amqp.serialization
import msgspec
import pytest
from django.db.models import TextChoices
from django.utils.text import format_lazy
from kombu.utils import json
from msgspec.msgpack import Ext

from kombu_opendata.client.session.unconfirmed import content_of
from kombu_opendata.json_values import plain
from kombu_opendata.protocol import envelope, framing
from kombu_opendata.protocol.header_types import with_extensions
from kombu_opendata.protocol.messages import Publish
from kombu_opendata.storage.routing import header_match

NAIVE = dt.datetime(2026, 1, 2, 3, 4, 5)
AWARE = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))
REFUSED = type("REFUSED", (), {})  # a name in the ids of tests, which all processes of a run must agree on
UUID = uuid.UUID("12345678123456781234567812345678")


class FrozenTime(dt.datetime):
    """A datetime as test tools and time libraries make them."""


class Markup(str):
    """A text as Django's templates make them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


class Meters(int):
    pass


#: what is sent, what py-amqp makes of it, what we make of it
TABLE = [
    ("text", "text", "text"),
    (True, True, True),
    (None, None, None),
    (7, 7, 7),
    (-(2**40), -(2**40), -(2**40)),
    (2**64 - 1, REFUSED, 2**64 - 1),
    (1.5, 1.5, 1.5),
    (b"\x00\xff", b"\x00\xff", b"\x00\xff"),
    (b"text", "text", b"text"),  # py-amqp has one type for both
    ([1, "a"], [1, "a"], [1, "a"]),
    ((1, "a"), [1, "a"], [1, "a"]),
    ({1}, REFUSED, [1]),
    ({"a": {"b": 1}}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    (NAIVE, NAIVE, NAIVE),
    (NAIVE.replace(microsecond=6), NAIVE, NAIVE.replace(microsecond=6)),  # AMQP's are whole seconds
    (AWARE, AWARE.astimezone(dt.UTC).replace(tzinfo=None), AWARE.astimezone(dt.UTC)),
    (FrozenTime(2026, 1, 2, 3, 4, 5), NAIVE, NAIVE),
    (FrozenTime(2026, 1, 2, 1, 4, 5, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, 1, 4, 5), AWARE),
    (Decimal("1.50"), Decimal("1.50"), Decimal("1.50")),
    (Decimal("-3"), Decimal(-3), Decimal(-3)),
    (Decimal("NaN"), REFUSED, Decimal("NaN")),
    (dt.date(2026, 1, 2), REFUSED, dt.date(2026, 1, 2)),
    (dt.time(3, 4), REFUSED, dt.time(3, 4)),
    (UUID, REFUSED, UUID),
    (Markup("text"), "text", "text"),
    (Meters(7), 7, 7),
    (TextChoices("Status", {"SENT": "sent"}).SENT, "sent", "sent"),
    (format_lazy("{}", "lazy"), REFUSED, "lazy"),
]


def through_envelope(headers: dict[str, Any], properties: dict[str, Any] | None = None) -> Any:
    return envelope.decode(envelope.encode_envelope(b"", None, None, headers, properties or {}, "", ""))


def through_amqp(value: Any) -> Any:
    try:
        data = amqp.serialization.dumps("F", [{"h": value}])
    except Exception:
        return REFUSED
    return amqp.serialization.loads("F", data, 0)[0][0]["h"]


def same(value: Any, other: Any) -> bool:
    if isinstance(value, Decimal):
        return type(other) is Decimal and value.compare_total(other) == 0
    return type(value) is type(other) and bool(value == other)


@pytest.mark.parametrize(("sent", "by_amqp", "ours"), TABLE, ids=lambda value: repr(value)[:40])
def test_a_header_has_the_type_that_it_has_over_rabbitmq_and_redis(sent: Any, by_amqp: Any, ours: Any) -> None:
    over_amqp = through_amqp(sent)
    assert over_amqp is REFUSED if by_amqp is REFUSED else over_amqp == by_amqp
    headers = through_envelope({"h": sent})[3]
    assert same(headers["h"], ours)
    nested = through_envelope({"h": {"a": [sent, {"b": (sent,)}]}})[3]
    assert same(nested["h"]["a"][0], ours)
    assert same(nested["h"]["a"][1]["b"][0], ours)
    assert same(through_envelope({}, {"p": sent})[4]["p"], ours)
    if not isinstance(sent, (set, FrozenTime)) and sent != AWARE:  # Redis keeps the zone
        assert same(json.loads(json.dumps({"h": sent}))["h"], ours)  # type: ignore[no-untyped-call]


def test_plain_headers_are_not_copied_and_those_of_the_caller_not_changed() -> None:
    plain_headers: dict[str, Any] = {"timelimit": [None, None], "stamps": {"a": (1,)}}
    assert with_extensions(plain_headers) is plain_headers
    sent = {"due": NAIVE, "nested": [NAIVE]}
    through_envelope(sent)
    assert sent == {"due": NAIVE, "nested": [NAIVE]}


@pytest.mark.parametrize("data", [Ext(1, b"soon"), Ext(2, b"much"), Ext(4, b"\xff"), Ext(99, b"")])
def test_an_extension_that_can_not_be_read_stays_one(data: Ext) -> None:
    received = through_envelope({"h": data})[3]["h"]
    assert (received.code, received.data) == (data.code, data.data)


def test_the_broker_copies_extensions_and_compares_them_by_their_texts() -> None:
    sent = envelope.encode_envelope(b"", None, None, {"price": Decimal("1.50"), "due": [NAIVE]}, {}, "", "")
    opened = envelope.open_envelope(sent)
    assert opened is not None
    assert header_match.matches({"price": "1.50"}, opened[3])
    assert not header_match.matches({"price": "1.5"}, opened[3])
    assert not header_match.matches({"price": 1.5}, opened[3])
    copied = envelope.encode_envelope(*opened)
    assert envelope.decode(copied)[3] == {"price": Decimal("1.50"), "due": [NAIVE]}
    assert "price" not in envelope.metadata_headers(opened[3], "", "", 0, None)


def test_a_repeated_message_with_extensions_is_recognized() -> None:
    def digest(price: str) -> bytes:
        data = envelope.encode_envelope(b"", None, None, {"price": Decimal(price)}, {}, "", "")
        return content_of(Publish(0, 0, "", "q", data, {}, 0, 0))

    assert digest("1.50") == digest("1.50") != digest("1.51")


def test_restored_values_are_shown_as_texts() -> None:
    assert plain([NAIVE, dt.date(2026, 1, 2), dt.time(3, 4), Decimal("1.50"), UUID]) == [
        "2026-01-02T03:04:05", "2026-01-02", "03:04:00", "1.50", str(UUID),
    ]  # fmt: skip
    assert plain(AWARE) == "2026-01-02T01:04:05.000Z"


def test_the_extensions_are_what_the_format_has() -> None:
    data = msgspec.msgpack.encode(with_extensions({"a": NAIVE, "b": Decimal("1.50"), "c": UUID}))
    texts = {name: (ext.code, bytes(ext.data)) for name, ext in msgspec.msgpack.decode(data).items()}
    assert texts == {"a": (1, b"2026-01-02T03:04:05"), "b": (2, b"1.50"), "c": (5, str(UUID).encode())}


@pytest.mark.parametrize("value", ["a", b"a", 0.5, 7], ids=lambda value: type(value).__name__)
def test_a_value_of_a_subclass_is_encoded_as_its_base_class(value: Any) -> None:
    kind = type("Sub", (type(value),), {"__str__": lambda _: "another", "__repr__": lambda _: "another"})
    for sent in (kind(value), [kind(value)], {"a": kind(value)}):
        data = envelope.encode_envelope(b"", None, None, {"h": sent}, {"p": sent}, "", "q")
        headers, properties = envelope.decode(data)[3:5]
        assert headers["h"] == properties["p"] == sent
        assert "Sub" not in repr(type(next(iter(headers.values()))))
    assert framing.frame(Publish(0, 0, "", kind(value), b"", {}, 0, 0)) == framing.frame(
        Publish(0, 0, "", value, b"", {}, 0, 0)
    )
