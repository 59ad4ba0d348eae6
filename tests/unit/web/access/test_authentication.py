"""Sessions of the page: when they end."""

from __future__ import annotations

from kombu_opendata.web.access.authentication import MOST, Sessions


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_after_its_last_request() -> None:
    sessions = Sessions(10, 100, time := Time())
    token = sessions.begin("ann", "key")
    for _ in range(3):
        time.now += 9
        assert sessions.find(token)
    time.now += 11
    assert sessions.find(token) is None


def test_a_session_ends_in_any_case() -> None:
    sessions = Sessions(10, 30, time := Time())
    found = sessions.find(token := sessions.begin("ann", "key"))
    assert found
    for _ in range(4):
        time.now += 9
        sessions.find(token)
    assert sessions.find(token) is None
    assert not sessions.is_active(found)
    time.now = 0
    assert not sessions.is_active(found)


def test_an_ended_session_is_over_for_who_still_has_it() -> None:
    sessions = Sessions(10, 30, Time())
    found = sessions.find(token := sessions.begin("ann", "key"))
    sessions.end(token)
    assert found
    assert not sessions.is_active(found)
    assert sessions.find(token) is None


def test_the_number_of_sessions_is_limited() -> None:
    sessions = Sessions(10, 30, Time())
    first = sessions.begin("ann", "key")
    for _ in range(MOST):
        last = sessions.begin("ann", "key")
    assert sessions.find(first) is None
    assert sessions.find(last)
