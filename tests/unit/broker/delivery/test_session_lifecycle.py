"""Rights of a session that change while it is connected."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.access.rights import User
from kombu_opendata.broker.access.users_format import Patterns, UserTable
from kombu_opendata.protocol.messages import WatchResults
from tests.unit.broker.model.test_queue import World, run

pytestmark = pytest.mark.contract(13)

RESULT = b"result"


def reader(pattern: str) -> User:
    """Return a user that may read names that match a pattern."""
    return User("alice", UserTable(instances={"default": Patterns(read=pattern)}))


@pytest.mark.parametrize(("pattern", "may_watch"), [("^(q|amq.results)$", True), ("^q$", False)])
def test_a_user_that_may_no_longer_read_results_is_not_notified_of_them(pattern: str, may_watch: bool) -> None:
    async def steps(world: World) -> None:
        instance, session = world.instance, world.session
        session.rights = reader(".*").rights("default")
        world.call(WatchResults(1, [RESULT]))
        await world.call.done()
        assert instance.results.is_waiting(session, RESULT)
        instance.lifecycle.change_user(session, reader(pattern))
        assert instance.results.is_waiting(session, RESULT) == may_watch

    run(True, steps)
