"""What users of every kind see: who may read one queue, and who sees all but no contents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.batches import commit_job
from ..support.page import PageServer
from ..support.processes import children
from ..support.served import ServedBroker
from ..support.users import user_table, write_users

ONE_QUEUE = {"configure": "", "write": "", "read": "^shown$"}


class World(NamedTuple):
    """A page that asks for logins, and a client that may do everything."""

    page: PageServer
    admin: QueueClient


@pytest.fixture(scope="module")
def world(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = module_store_folder
    users = write_users(
        folder / "users",
        user_table("root", "secret", roles=("admin",)),
        user_table("mona", "secret", {"*": {}}, roles=("monitor",)),
        user_table("ann", "secret", {"default": ONE_QUEUE}),
    )
    options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    with children() as started:
        started.add(broker := ServedBroker(folder, *options))
        place = f"127.0.0.1:{broker.port}"
        started.add(page := PageServer(tmp_path_factory.mktemp("page"), f"opendata://{place}"))
        with QueueClient(f"opendata://root:secret@{place}") as admin:
            admin.create("shown")
            admin.create("hidden")
            yield World(page, admin)


@contextmanager
def logged_in(world: World, user: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=world.page.url, timeout=60) as site:
        assert site.post("login", data={"user": user, "password": "secret"}).status_code == 303
        yield site


def test_who_may_read_one_queue_sees_it_and_its_messages(world: World) -> None:
    id = world.admin.send("shown", {"a": 1})
    with logged_in(world, "ann") as site:
        assert site.get("").status_code == 200
        for path in ("queue?name=shown", f"message?id={id}"):
            assert site.get(path).status_code == 200, path
        listed = site.get("api/v1/messages?queue=shown").json()["rows"]
        assert [(one["id"], one["received_at"] is not None) for one in listed] == [(id, True)]
        assert '"a": 1' in site.get(f"api/v1/message?id={id}").json()["body"]["text"]
        assert site.get("jump?to=shown").headers["location"] == "/queue?name=shown"
        with closing(world.admin.consume("shown")) as messages:
            world.admin.ack(next(messages))
            assert "role monitor" in site.get("queue?name=shown").text, "names of consumers are not for everybody"
        for path in ("queue?name=hidden", "workers", "store", "api/v1/workers", "api/v1/store"):
            refused = site.get(path)
            assert refused.status_code == 403, path
            assert "ann" in refused.text


def test_a_monitor_sees_jobs_and_may_not_change_them(world: World) -> None:
    commit_job(world.admin, "nightly", 2, queue="hidden")
    with logged_in(world, "mona") as site:
        for path in ("spark-jobs", "spark-job?id=nightly"):
            page = site.get(path).text
            assert "nightly" in page
            assert "<button type" not in page, path
        report = site.get("api/v1/spark-job?id=nightly").json()
        assert (report["tasks"]["waiting"], report["queues"]["hidden"]["routed"]) == (2, 2)
        for action in ("cancel-job", "retry-job", "delete-job"):
            refused = site.post(f"api/v1/actions/{action}", json={"job_id": "nightly"})
            assert refused.status_code == 403, refused.text
    with logged_in(world, "root") as site:
        assert "Cancel…" in site.get("spark-job?id=nightly").text
    with logged_in(world, "ann") as site:
        assert "amq.staged" in site.get("spark-jobs").text
        assert site.get("spark-job?id=nightly").status_code == 403
    world.admin.cancel_job("nightly")


def test_a_body_that_is_not_for_a_monitor_is_not_shown_as_empty(world: World) -> None:
    id = world.admin.send("shown", "confidential")
    with logged_in(world, "mona") as site:
        shown = site.get(f"message?id={id}").text
        assert "confidential" not in shown
        assert "you lack the right" in shown
    world.admin.purge("shown")
