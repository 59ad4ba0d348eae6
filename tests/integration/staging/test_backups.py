"""The objects of staged jobs are part of a backup, and stay while one is made."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kombu_opendata.client.maintain import maintain
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.offline import open_store
from kombu_opendata.staging.job import StagingTarget

from ...support.backups import back_up, command
from ...support.batches import Sink, as_objects, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import Children, wait_until
from ...support.served import ServedBroker
from ...support.verified import assert_verified
from .conftest import bodies, consume, objects, when


def test_objects_wait_for_the_reader_that_may_need_them(store_folder: Path, started: Children) -> None:
    listen = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
    started.add(ServedBroker(store_folder, *listen, app="quick_tidies.py"))
    sink = Sink(f"opendata://{store_folder}")
    client = StagingClient(sink.connection)
    target = as_objects(client.staging_target())
    sink.declare("brief", x_done_retention=1, x_failed_retention=1)
    client.commit_job("job", stage(target, "job", [bodies(300)], routing_key="brief"))
    when(client, "job", lambda job: job.routed == 300)
    watch = EmbeddedBroker(store_folder)

    async def read() -> None:
        async with await open_store(store_folder):
            await asyncio.to_thread(use_up)
            assert len(objects(store_folder)) == 1

    def use_up() -> None:
        consume(sink, "brief")
        sink.take(300)
        wait_until(lambda: collected() == 0, 60, lambda: repr(watch.report()["staging"]))

    def collected() -> int:
        maintain(sink.connection, ["collect"])
        needed: int = watch.report()["staging"]["objects"]
        return needed

    asyncio.run(read())
    wait_until(lambda: not objects(store_folder), 60, lambda: repr(watch.report()["staging"]))
    sink.close()


def test_a_restored_job_goes_on_where_it_was(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path, tmp_path: Path
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(300), bodies(300, 300)]))
    when(client, "job", lambda job: job.routed == 600)
    back_up(tmp_path / "backups", store_folder)
    again = back_up(tmp_path / "backups", store_folder)
    restored = store_folder / "restored"
    command("restore", tmp_path / "backups", restored)
    assert_verified(restored)
    assert len(objects(restored)) == 2
    assert again["instances"]["default"]["queues"] == {"q": 600}
    found = Sink(f"opendata://{restored}", "q")
    found.take(600)
    assert set(found.got) == set(bodies(600))
    found.close()
