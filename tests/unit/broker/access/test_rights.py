"""Decisions about names: as RabbitMQ makes them, each once, in bounded time and memory."""

from __future__ import annotations

import time

import pytest

from kombu_opendata.broker.access.rights import Names, PatternError, Rights
from kombu_opendata.broker.access.users_format import Patterns
from kombu_opendata.errors import AccessRefused

pytestmark = pytest.mark.contract(13)


def test_a_pattern_is_searched_for() -> None:
    assert Names("celery")["my.celery.queue"]
    assert not Names("^celery$")["my.celery.queue"]
    assert Names("^(celery|mail)$")["mail"]
    assert not Names("")["celery"]
    assert not Names("")[""]
    assert Names("é")["café"]
    with pytest.raises(PatternError, match="is not a regular expression of RE2"):
        Names("a{3,2}")


def test_no_pattern_and_no_name_takes_long() -> None:
    names = Names("^(a+)+(a|aa)*$")
    begun = time.process_time()
    for number in range(200):
        assert not names["a" * 240 + f"!{number}"]
    assert time.process_time() - begun < 1
    assert not Names(".*b")["b" * 1000], "no queue has such a name"


def test_decisions_are_remembered_up_to_a_number() -> None:
    names = Names("^q", max_decisions=100)
    for number in range(1000):
        assert names[f"q{number}"]
    assert 0 < len(names) <= 100


def test_the_default_exchange_is_permitted_by_its_name_or_by_that_of_the_queue() -> None:
    patterns = {"^amq\\.default$": (True, True), "^mine": (True, False), "^other": (False, False)}
    for pattern, expected in patterns.items():
        rights = Rights("u", "i", Patterns(write=pattern))
        for queue, may in zip(("mine.1", "else"), expected, strict=True):
            if may:
                rights.check_publish("", queue)
            else:
                with pytest.raises(AccessRefused, match="over the default exchange"):
                    rights.check_publish("", queue)
    with pytest.raises(AccessRefused):
        Rights("u", "i", Patterns(write="^$")).check_publish("", "")


def test_a_refusal_says_which_right_on_what_is_missing() -> None:
    rights = Rights("celery", "default", Patterns(write="^celery"))
    with pytest.raises(AccessRefused) as caught:
        rights.check_publish("x", "celery")
    assert caught.value.text == (
        "user 'celery' may not write to exchange 'x' in instance 'default': its write pattern is '^celery'. "
        "Ask the administrator of the users file (opendata-queue user permit celery)"
    )
    assert caught.value.values == {
        "right": "write", "kind": "exchange", "name": "x", "user": "celery", "instance": "default",
    }  # fmt: skip
    with pytest.raises(
        AccessRefused, match="may not read from queue 'q' in instance 'default': it has no read pattern"
    ):
        rights.check("read", "queue", "q")


def test_roles_include_each_other() -> None:
    of = {role: Rights("u", "i", Patterns(), [role]) for role in ("monitor", "operator", "admin")}
    assert [len(rights.roles) for rights in of.values()] == [1, 2, 3]
    assert [r.read["q"] for r in of.values()] == [False, False, True]
