"""Places for connections: who gets one, and who loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kombu_opendata.broker.wire.connection_limits import MAX_LEAVING, Admission, ConnectionLimits, Slot
from kombu_opendata.errors import TooManyConnections

HOUR = 3600.0


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            test()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def take(admission: Admission, host: str, turned_away: list[str], name: str = "") -> Slot:
    slot = admission.take(host, name or host)
    slot.turn_away = lambda exc: turned_away.append(f"{slot.peer}: {exc.values['what']}")
    return slot


@in_loop
def test_the_oldest_silent_stranger_makes_room() -> None:
    admission = Admission(ConnectionLimits(100, 3, 100, HOUR))
    gone: list[str] = []
    first = take(admission, "a", gone)
    for host in "bcd":
        take(admission, host, gone)
    assert gone == ["a: strangers"]
    assert (admission.strangers, len(admission.slots)) == (3, 4), "its socket is not closed yet"
    first.free()
    assert admission.strangers == len(admission.slots) == 3


@in_loop
def test_those_that_are_being_closed_are_few() -> None:
    """Each still has a file descriptor."""
    admission = Admission(ConnectionLimits(10, 5, 100, HOUR))
    gone: list[str] = []
    for _ in range(10 + MAX_LEAVING):
        take(admission, "a", gone)
    with pytest.raises(TooManyConnections):
        admission.take("b", "b")
    assert len(admission.slots) == 10 + MAX_LEAVING


@in_loop
def test_one_host_takes_no_places_of_others() -> None:
    admission = Admission(ConnectionLimits(100, 10, 2, HOUR))
    gone: list[str] = []
    take(admission, "other", gone)
    for name in ("first", "second", "third"):
        take(admission, "busy", gone, name)
    assert gone == ["first: host"]
    take(admission, "", gone, "local")


@in_loop
def test_who_said_hello_keeps_the_place() -> None:
    admission = Admission(ConnectionLimits(100, 2, 100, HOUR))
    for slot in [take(admission, "a", []) for _ in range(2)]:
        slot.greeted()
    with pytest.raises(TooManyConnections, match="2 connections that have not logged in"):
        admission.take("b", "b")


@in_loop
def test_who_logged_in_is_no_stranger() -> None:
    admission = Admission(ConnectionLimits(3, 2, 1, HOUR))
    for _ in range(3):
        take(admission, "a", []).logged_in()
    assert admission.strangers == 0
    with pytest.raises(TooManyConnections, match="3 connections and takes no more"):
        admission.take("b", "b")


@pytest.mark.parametrize(("descriptors", "connections", "strangers"), [(1024, 824, 256), (256, 64, 32), (1, 0, 1)])
def test_limits_within_the_file_descriptors(descriptors: int, connections: int, strangers: int) -> None:
    limits = ConnectionLimits().within(descriptors)
    assert (limits.connections, limits.strangers) == (connections, strangers)


def test_a_resume_has_a_deadline() -> None:
    async def main() -> None:
        admission = Admission(ConnectionLimits(10, 10, 10, HOUR, resume_seconds=0.01))
        turned_away: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        late, soon = admission.take("a", "late"), admission.take("a", "soon")
        late.turn_away = turned_away.set_result
        for slot in (late, soon):
            slot.greeted()
            slot.awaits_resume()
        assert admission.strangers == 0
        soon.logged_in()
        assert (await asyncio.wait_for(turned_away, 10)).text.startswith("no Resume within 0.01 s of the login")

    asyncio.run(main())
