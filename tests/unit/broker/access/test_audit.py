"""The audit log says each thing once a minute and counts the rest, so that a loop can't fill a disk."""

from __future__ import annotations

import logging

import pytest

from kombu_opendata.broker.access import audit as module
from kombu_opendata.broker.access.audit import Audit
from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.broker.access.users_format import Patterns
from kombu_opendata.errors import AccessRefused


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(exchange: str, user: str = "app") -> AccessRefused:
    with pytest.raises(AccessRefused) as caught:
        Rights(user, "default", Patterns()).check_publish(exchange, "key")
    return caught.value


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, module.NAME)
    return caplog


def test_a_refusal_has_one_line_a_minute_and_a_count(lines: pytest.LogCaptureFixture) -> None:
    time = Time()
    audit = Audit(time, "default")
    for _ in range(50):
        audit.refused(refusal("x"), "'client'")
    audit.tick()
    audit.refused(refusal("y"), "'client'")
    time.now += module.PERIOD_SECONDS
    audit.tick()
    audit.tick()
    audit.refused(refusal("x"), "'client'")
    audit.refused(refusal("x"), "'client'")
    audit.close()
    audit.close()
    assert lines.messages == [
        "refused: write on exchange 'x' in instance 'default' to user 'app' (client 'client')",
        "refused: write on exchange 'y' in instance 'default' to user 'app' (client 'client')",
        "refused 49 times more in 60 s: write on exchange 'x' to user 'app'",
        "refused: write on exchange 'x' in instance 'default' to user 'app' (client 'client')",
        "refused 1 times more in 60 s: write on exchange 'x' to user 'app'",
    ]
    assert [(line.user, line.right, line.object) for line in lines.records[:3]] == [  # type: ignore[attr-defined]
        ("app", "write", "exchange x"), ("app", "write", "exchange y"), ("app", "write", "exchange x"),
    ]  # fmt: skip


def test_many_names_are_counted_together(lines: pytest.LogCaptureFixture) -> None:
    time = Time()
    audit = Audit(time)
    for number in range(10 * module.MAX_REFUSALS):
        audit.refused(refusal(f"x{number}"), "'client'")
    time.now += module.PERIOD_SECONDS
    audit.tick()
    assert len(lines.messages) <= module.MAX_REFUSALS + 2
    assert f"refused {9 * module.MAX_REFUSALS - 1} times more" in lines.messages[-1]
    assert lines.messages[-1].endswith(": other rights to user 'app'")


def test_a_line_is_one_line(lines: pytest.LogCaptureFixture) -> None:
    audit = Audit(Time())
    audit.refused(refusal("x\nrefused: nothing"), repr("a\nclient"))
    audit.changed("app\n", repr("a\nclient"), "deleted queue %r", "q\nueue")
    assert all("\n" not in text for text in lines.messages)


def test_changes_have_a_line_each_up_to_a_number(lines: pytest.LogCaptureFixture) -> None:
    time = Time()
    audit = Audit(time, "default")
    for number in range(module.MAX_CHANGES + 7):
        audit.changed("app", "'client'", "deleted queue %r", f"q{number}", queue=f"q{number}")
    audit.changed("", "'other'", "deleted queue %r", "q")
    time.now += module.PERIOD_SECONDS
    audit.tick()
    assert lines.messages[0] == "user 'app' (client 'client') deleted queue 'q0'"
    assert lines.messages[-2:] == [
        "anonymous (client 'other') deleted queue 'q'",
        "user 'app' made 7 changes more in 60 s",
    ]
