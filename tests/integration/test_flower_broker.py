"""What Flower asks of a broker: who may see which queue, and brokers that are away or silent."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tornado.web import HTTPError

from kombu_opendata import QueueClient
from kombu_opendata.celery_integration.command import OpenDataBroker
from kombu_opendata.cli.target import Target

from ..support.processes import Children
from ..support.served import ServedBroker
from ..support.users import user_table, write_users
from ..support.waiting import turns


@pytest.fixture
def broker(store_folder: Path, started: Children) -> ServedBroker:
    """With the queues "mail" and "other"."""
    users = write_users(
        store_folder / "users.toml",
        user_table("root", "x", roles=("admin",)),
        user_table("app", "x", {"*": {"read": "mail"}}),
        user_table("eye", "x", {"*": {}}, roles=("monitor",)),
        user_table("out", "x", {"*": {}}),
    )
    listen = ("--listen", "tcp:127.0.0.1:0", "--users", str(users))
    served = ServedBroker(store_folder, "--store", f"file://{store_folder}/store", *listen)
    started.add(served)
    with QueueClient(f"opendata://root:x@127.0.0.1:{served.port}") as client:
        for queue in ("mail", "other"):
            client.create(queue)
            client.send(queue, "x")
    return served


def seen(url: str) -> dict[str, int]:
    """How many messages Flower sees in the queues that it knows."""
    asked = OpenDataBroker(Target(url)).queues(["other", "mail", "gone"])
    return {queue["name"]: queue["messages"] for queue in asyncio.run(asked)}


def test_each_user_sees_what_it_may_read(broker: ServedBroker) -> None:
    at = f"x@127.0.0.1:{broker.port}"
    assert seen(f"opendata://app:{at}") == {"mail": 1}
    assert seen(f"opendata://eye:{at}") == {"mail": 1, "other": 1}
    assert seen(f"opendata://out:{at}") == {}
    assert "refused:" not in broker.log.read_text()
    with pytest.raises(HTTPError, match=r"503: .*unknown or the secret is wrong"):
        seen(f"opendata://nobody:{at}")


def test_while_the_broker_is_silent_flower_does_other_things(broker: ServedBroker) -> None:
    async def ask() -> None:
        asked = asyncio.create_task(
            OpenDataBroker(Target(f"opendata://eye:x@127.0.0.1:{broker.port}")).queues(["mail"])
        )
        await turns(10)  # all of them would wait for a call that blocks
        assert not asked.done()
        os.kill(broker.pid, signal.SIGCONT)
        assert [queue["name"] for queue in await asked] == ["mail"]

    os.kill(broker.pid, signal.SIGSTOP)
    try:
        asyncio.run(ask())
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_no_broker_is_started_to_be_asked(tmp_path: Path) -> None:
    with pytest.raises(HTTPError, match=r"503: .*no broker runs for"):
        seen(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
