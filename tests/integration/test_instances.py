"""Instances: those that a broker has are used, others are refused, and only who says so makes one."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.storage.slatedb.object_store import database_exists

from ..support.kombu_client import connected, declare, refused, send, take_bodies
from ..support.processes import Children
from ..support.served import COMMAND, ServedBroker


@pytest.fixture
def serve(store_folder: Path, tmp_path: Path, started: Children) -> Callable[..., ServedBroker]:
    def run(*options: str) -> ServedBroker:
        child = ServedBroker(tmp_path, "--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0", *options)
        started.add(child)
        return child

    return run


def run(broker: ServedBroker, *words: str, instance: str = "") -> Any:
    url = f"opendata://127.0.0.1:{broker.port}/{instance}"
    return subprocess.run([COMMAND, *words, "--url", url], capture_output=True, text=True, timeout=60)


def test_a_misspelt_instance_is_refused_and_makes_nothing(
    serve: Callable[..., ServedBroker], store_folder: Path
) -> None:
    broker = serve("--instance", "default", "--instance", "staging")
    error = refused(f"opendata://127.0.0.1:{broker.port}/stagging")
    assert isinstance(error, errors.InstanceNotFound)
    assert isinstance(error, amqp.NotAllowed), "as for a virtual host of RabbitMQ"
    assert error.instance == "stagging"
    told = str(error)
    assert "this broker has no instance 'stagging'; it has default, staging. Did you mean 'staging'?" in told
    for way in ("opendata-queue instance create stagging", "--instance stagging", "--create-instances"):
        assert way in told
    assert not (store_folder / "stagging").exists()
    done = run(broker, "status", instance="stagging")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Did you mean 'staging'?" in done.stderr


def test_one_that_is_made_is_there_for_good(serve: Callable[..., ServedBroker]) -> None:
    broker = serve()
    made = run(broker, "instance", "create", "billing")
    assert (made.returncode, made.stdout) == (0, "instance billing created\n")
    again = run(broker, "instance", "create", "billing", "--json")
    assert json.loads(again.stdout) == {"instance": "billing", "created": False}
    with connected(f"opendata://127.0.0.1:{broker.port}/billing") as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", b"x")
    assert broker.terminate() == 0

    broker = serve()
    listed = json.loads(run(broker, "instance", "list", "--json").stdout)
    assert listed == [{"instance": "billing", "open": False}, {"instance": "default", "open": True}]
    with connected(f"opendata://127.0.0.1:{broker.port}/billing") as connection:
        assert take_bodies(connection.channel(), "q") == [b"x"]
    assert "billing    yes" in run(broker, "instance", "list").stdout


@pytest.mark.parametrize("name", ["a.journal", "a.staged", "", "a/b", ".a", "ä", "x" * 65])
def test_a_name_that_none_can_have(name: str, serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    broker = serve()
    done = run(broker, "instance", "create", name)
    assert done.returncode in (1, 2)
    assert "use up to 64 letters" in done.stderr
    assert not [entry for entry in store_folder.iterdir() if entry.name in (name, "a", "x" * 65)]


def test_an_option_makes_any(serve: Callable[..., ServedBroker]) -> None:
    broker = serve("--create-instances")
    with QueueClient(f"opendata://127.0.0.1:{broker.port}/any") as client:
        assert client.list_instances() == {"any": True, "default": True}
        assert not client.create_instance("any")


def test_a_database_in_a_store_is_not_taken_for_a_store(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    serve()
    database = store_folder / "default"
    files = sorted(entry.name for entry in database.iterdir())
    error = refused(f"opendata://{database}")
    assert isinstance(error, errors.StoreUnwritable)
    assert f"{database} is the database of the instance 'default' in the store {store_folder}" in str(error)
    words = ["broker", "--store", str(database), "--listen", "tcp:127.0.0.1:0"]
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "name the store's folder" in done.stderr
    assert sorted(entry.name for entry in database.iterdir()) == files


def test_whether_a_store_that_is_no_folder_has_a_database() -> None:
    async def ask() -> list[bool]:
        from kombu_opendata.storage.slatedb.store_writer import SlateStore

        url = "memory://test-instances"
        store = await SlateStore.open(url, "there")
        found = [await database_exists(url, name) for name in ("there", "elsewhere", "the")]
        await store.close()
        return found

    assert asyncio.run(ask()) == [True, False, False]
