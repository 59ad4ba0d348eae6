"""Exit codes of commands for many messages that did nothing, or not all of it."""

from __future__ import annotations

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.queue_client.queue_options import QueueOptions

from .conftest import run


@pytest.fixture(scope="module", autouse=True)
def queues(client: QueueClient) -> None:
    """A queue with five waiting messages, one with three failed ones, and one that takes large amounts only."""
    client.create("waiting")
    client.create("failing")
    client.create("large", QueueOptions(filter="amount > 100", filter_mode="all"))
    for number in range(5):
        client.send("waiting", number, {"amount": 50 * number})
    client.send_batch("failing", range(3), {"amount": 1})
    for message in client.read("failing", vt=30, qty=3):
        client.reject("failing", message)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("failed retry failing --id 999999", "nothing that failed has the id 999999"),
        ("failed archive failing --id 999999", "1 of 1 ids are not failed messages of the queue that match"),
        ("failed delete --id 999999 --yes", "1 of 1 ids are not failures that match"),
        ("done delete old --id 999999 --yes", "1 of 1 ids are not done messages of the queue"),
        ("queue move waiting mails --id 999999", "1 of 1 ids are not messages of the queue that match"),
        ("queue copy waiting mails --id 999999", "1 of 1 ids are not messages of the queue that match"),
        ("failed retry failing --to large", "3 failures did not run again: 3 the filter of the queue does not match"),
    ],
)
def test_nothing_was_done(words: str, text: str, url: str) -> None:
    told = run(*words.split(), url=url)
    assert told.returncode == 1
    assert text in told.stderr


def test_only_some_were_moved(client: QueueClient, url: str) -> None:
    told = run("queue", "copy", "waiting", "large", url=url)
    assert told.stdout == (
        "2 messages copied from queue 'waiting' to 'large'; 3 left out (the filter of queue 'large' does not match)\n"
    )
    assert told.returncode == 5
    assert "3 messages not copied: the filter of queue 'large' does not match" in told.stderr
    again = run("queue", "copy", "waiting", "large", "--where", "amount > 100", url=url)
    assert (again.returncode, again.stdout.startswith("0 messages copied")) == (0, True)
