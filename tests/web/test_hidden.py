"""Values of masked names are nowhere on the page and in its API, wherever a message or its failure is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.masking import MASK

from ..support.page import PageServer
from ..support.processes import children, wait_until
from ..support.workers import Worker, sender

HIDDEN = "hunter2"
NAMED = f"/nowhere/api_key={HIDDEN}"


class World(NamedTuple):
    """A page; a task that failed with an error that names what is masked; and a message that waits, with a header."""

    site: httpx.Client
    failed: int
    task: str
    waiting: int


@pytest.fixture(scope="module")
def world(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    url = f"opendata://{module_store_folder}"
    with children() as started, QueueClient(url) as client, sender(url) as app:
        started.add(worker := Worker(url, tmp_path_factory.mktemp("worker"), "w", "-Q", "celery"))
        worker.wait_ready()
        task = app.send_task("farm.note", [NAMED], {"line": "x"}, headers={"card_token": HIDDEN}, queue="celery")
        wait_until(lambda: bool(client.list_failures().items), 60, "a failure")
        failed = client.list_failures().items[0].message_id
        client.create("mail")
        waiting = client.send("mail", {"password": HIDDEN, "text": NAMED}, {"card_token": HIDDEN})
        started.add(server := PageServer(tmp_path_factory.mktemp("page"), url))
        with httpx.Client(base_url=server.url, timeout=60) as site:
            yield World(site, failed, str(task.id), waiting)


@pytest.mark.parametrize(
    "path",
    [
        "message?id={failed}", "task?id={task}", "queue?name=celery&tab=failed", "failed", "failed?by=exception",
        "message?id={waiting}", "filters/explain?id={waiting}&where=card_token%20IS%20NOT%20NULL",
        "api/v1/message?id={failed}", "api/v1/task?id={task}", "api/v1/failures", "api/v1/message?id={waiting}",
        "api/v1/filters/explain?id={waiting}&where=NOT%20(card_token%20=%20'x'%20OR%20n%20=%201)",
    ],
)  # fmt: skip
def test_what_is_hidden(world: World, path: str) -> None:
    answer = world.site.get(path.format(**world._asdict()))
    assert answer.status_code == 200, answer.text
    assert HIDDEN not in answer.text
    assert MASK in answer.text


def test_a_header_that_is_missing_is_not_masked(world: World) -> None:
    given = {"id": str(world.waiting), "where": "other_token = 'x'"}
    found = world.site.get("api/v1/filters/explain", params=given).json()
    assert found["report"]["filter"]["headers"] == {"other_token": None}
    assert "missing" in found["lines"][0]
