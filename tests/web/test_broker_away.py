"""A broker that goes away under a page: every view says so soon, also those whose queries may take long."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.page import PageServer
from ..support.processes import children, wait_until
from ..support.served import ServedBroker

VIEWS = ("task?id=x", "failed", "queue?name=mail&tab=failed", "message?id=0")


def test_each_view_says_that_the_broker_is_away_and_goes_on(
    store_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = ("--store", f"file://{store_folder}/store")
    with children() as started:
        started.add(broker := ServedBroker(store_folder, *store, "--listen", "tcp:127.0.0.1:0"))
        place = f"127.0.0.1:{broker.port}"
        with QueueClient(f"opendata://{place}") as client:
            client.create("mail")
            client.send("mail", {}, {"task": "x", "id": "x"})
        started.add(page := PageServer(tmp_path_factory.mktemp("page"), f"opendata://{place}"))
        with httpx.Client(base_url=page.url, timeout=60) as site:
            assert [site.get(view).status_code for view in VIEWS] == [200] * len(VIEWS)
            broker.terminate()
            for view in VIEWS:
                for path in (view, f"api/v1/{view.replace('&tab=failed', '').replace('failed', 'failures')}", view):
                    assert site.get(path).status_code in (502, 503), path
            started.add(ServedBroker(store_folder, *store, "--listen", f"tcp:{place}"))
            wait_until(lambda: all(site.get(view).status_code == 200 for view in VIEWS), 60, "the page goes on")
