"""Backups of a store under load, whose broker is killed now and then: each has all that it must, and nothing else."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from kombu_opendata import QueueClient

from ..support.backups import back_up, command
from ..support.broker import EmbeddedBroker
from ..support.seeds import seeded_random
from ..support.verified import assert_verified

SECONDS = 25
NEVER = float("inf")


class Taken(NamedTuple):
    """A backup, and between which moments it was made."""

    id: str
    began: float
    ended: float


class Load:
    """Publishers and consumers, and when each message was confirmed, was about to be deleted, and was deleted."""

    def __init__(self, url: str, dice: random.Random) -> None:
        self.url, self.dice = url, dice
        self.confirmed: dict[bytes, float] = {}
        self.going: dict[bytes, float] = {}
        self.gone: dict[bytes, float] = {}
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.publish, args=(number,)) for number in range(2)]
        self.threads += [threading.Thread(target=self.consume) for _ in range(2)]

    def publish(self, number: int) -> None:
        count = 0
        with QueueClient(self.url, reconnect_timeout=60) as client:
            while not self.over.is_set():
                sent = [b"%d-%d " % (number, count + i) + bytes(self.dice.randrange(3000)) for i in range(20)]
                count += 20
                client.send_batch("q", sent)
                self.confirmed |= dict.fromkeys(sent, time.monotonic())
                self.over.wait(0.02)

    def consume(self) -> None:
        with QueueClient(self.url, reconnect_timeout=60) as client:
            while not self.over.is_set():
                messages = client.read("q", vt=600, qty=15)
                self.going |= dict.fromkeys((bytes(one.body) for one in messages), time.monotonic())
                client.delete_many("q", messages)
                self.gone |= dict.fromkeys((bytes(one.body) for one in messages), time.monotonic())
                self.over.wait(0.02)


def waiting(store: Path) -> set[bytes]:
    """The messages of a store that wait or are in flight."""
    with QueueClient(f"opendata://{store}") as client:
        found = {bytes(client.get(one.id, "q").message.body) for one in client.iter_by_state("q", "in_flight")}
        after = -1
        while page := client.peek("q", 1000, after=after):
            found |= {bytes(one.body) for one in page}
            after = page[-1].id
    EmbeddedBroker(store).terminate()
    return found


@pytest.mark.slow
def test_backups_of_a_store_under_load(store_folder: Path, tmp_path: Path) -> None:
    store, target, dice = store_folder / "store", tmp_path / "backups", seeded_random()
    broker = EmbeddedBroker(store)
    with QueueClient(f"opendata://{store}") as client:
        client.create("q")
    load = Load(f"opendata://{store}", dice)
    for thread in load.threads:
        thread.start()
    taken: list[Taken] = []
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            load.over.wait(dice.random())  # the random moment, not a wait for anything
            killer = threading.Timer(dice.random() * 0.1, broker.kill) if len(taken) % 8 == 7 else None
            if killer is not None:
                killer.start()
            began = time.monotonic()
            ended = command("backup", target, store, ok=False)
            if ended.exit_code == 0:
                taken.append(Taken(ended.output.split()[1].rstrip(":"), began, time.monotonic()))
            else:  # it was killed before the backup had begun to keep files
                assert ended.exit_code == 5, ended.output
            if killer is not None:
                killer.join()
    finally:
        load.over.set()
        for thread in load.threads:
            thread.join()
    assert len(taken) > 5
    assert back_up(target, store)["copied_files"]
    for number, one in enumerate(dice.sample(taken, 5)):
        restored = store_folder / f"restored-{number}"
        command("restore", target, restored, "--backup", one.id)
        assert_verified(restored)
        found = waiting(restored)
        must = {
            body for body, at in load.confirmed.items() if at < one.began and load.going.get(body, NEVER) > one.ended
        }
        must_not = {body for body, at in load.gone.items() if at < one.began}
        print(f"{one}: {len(found)} found, {len(must)} of them sure, {len(must_not)} gone for sure")
        assert must <= found
        assert not must_not & found
