"""Each action in a browser: its button, the number that it asks about, what it says it did, and what it did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.web.actions import ACTIONS

from ..support.batches import commit_job
from ..support.page import PageServer, opened
from ..support.pair import Pair
from ..support.pair import url as url_of
from ..support.processes import children, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

Prepare = Callable[[QueueClient], object]
Check = Callable[[QueueClient], object]


@dataclass(frozen=True)
class Deed:
    """An action on the queue that has its name, or on something else.

    Attributes:
        path: the view, below the page's address.
        button: what is pressed, exactly.
        concerns: a part of what the dialog says first.
        done: a part of what is said afterwards.
        check: whether the broker shows that it was done.
        prepare: makes what it is done to.
        fill: what is typed, by label.
        typed: what must be typed to confirm.
        chosen: how many of the view's messages are selected first.
        row: a text of the row that has the button.
    """

    action: str
    path: str
    button: str
    concerns: str
    done: str
    check: Check
    prepare: Prepare = lambda _client: None
    fill: dict[str, str] = field(default_factory=dict)
    typed: str = ""
    chosen: int = 0
    row: str = ""


def waiting(queue: str, count: int = 3) -> Prepare:
    """A queue in which messages wait."""

    def prepare(client: QueueClient) -> None:
        client.create(queue)
        client.send_batch(queue, list(range(count)))

    return prepare


def failed(queue: str, count: int = 3) -> Prepare:
    """A queue whose messages have failed."""

    def prepare(client: QueueClient) -> None:
        waiting(queue, count)(client)
        client.reject_many(queue, client.read(queue, qty=count))

    return prepare


def settled(queue: str, count: int = 3) -> Prepare:
    """A queue whose messages are done."""

    def prepare(client: QueueClient) -> None:
        waiting(queue, count)(client)
        client.pop(queue, count)

    return prepare


def leased(queue: str) -> Prepare:
    """A queue whose messages are in flight."""

    def prepare(client: QueueClient) -> None:
        waiting(queue)(client)
        client.read(queue, vt=3600, qty=3)

    return prepare


def paused(client: QueueClient) -> None:
    waiting("resume")(client)
    client.pause("resume")


def unbound(client: QueueClient) -> None:
    client.create("bind")
    client.declare_exchange("bind")


def bound(client: QueueClient) -> None:
    """An exchange with one binding."""
    client.create("unbind")
    client.declare_exchange("unbind")
    client.bind("unbind", "unbind", "a.#")


def replaying(client: QueueClient) -> None:
    """A replay that waits: its queue takes no publishes."""
    settled("stop-replay")(client)
    client.pause("stop-replay", publishes=True)
    client.replay("stop-replay", "first")


def job(id: str, failed: int = 0) -> Prepare:
    """A Spark job whose three tasks wait in a queue of its name, or have ended, some of them rejected."""

    def prepare(client: QueueClient) -> None:
        client.create(id)
        commit_job(client, id, 3, queue=id)
        if failed:
            client.reject_many(id, client.read(id, qty=failed))
            client.pop(id, 3 - failed)

    return prepare


def counted(queue: str, **levels: int) -> Check:
    """Whether a queue has so many."""

    def check(client: QueueClient) -> bool:
        figures = client.metrics(queue)
        return all(getattr(figures, name) == count for name, count in levels.items())

    return check


def both(queue: str, target: str, left: int, there: int) -> Check:
    def check(client: QueueClient) -> bool:
        return client.metrics(queue).ready == left and client.metrics(target).ready == there

    return check


def names(client: QueueClient) -> set[str]:
    return {one.name for one in client.list_queues()}


def exchanges(client: QueueClient) -> set[str]:
    return {one.name for one in client.list_exchanges()}


def two(queue: str) -> Prepare:
    def prepare(client: QueueClient) -> None:
        waiting(queue)(client)
        client.create(f"{queue}-target")

    return prepare


def of(queue: str, tab: str = "ready") -> str:
    return f"queue?name={queue}&tab={tab}"


DEEDS = [
    Deed(
        "create-queue", "", "Create a queue…", "A new queue", "The queue created is there.",
        lambda client: "created" in names(client), fill={"Queue": "created"},
    ),
    Deed(
        "purge", of("purge"), "Purge…", "3 ready or delayed messages of purge", "3 messages of purge deleted.",
        counted("purge", ready=0), waiting("purge"), typed="purge",
    ),
    Deed(
        "delete-queue", of("delete-queue"), "Delete the queue…", "with 3 messages", "The queue delete-queue is deleted",
        lambda client: "delete-queue" not in names(client), waiting("delete-queue"), typed="delete-queue",
    ),
    Deed(
        "pause", of("pause"), "Pause…", "0 consumers of pause", "pause is paused.",
        lambda client: client.metrics("pause").publishes_paused, waiting("pause"),
        fill={"Refuse publishes as well": "yes"},
    ),
    Deed(
        "resume", of("resume"), "Resume…", "3 ready or delayed messages", "resume resumed.",
        lambda client: not client.metrics("resume").paused,
        paused,
    ),
    Deed(
        "alter", of("alter"), "Change arguments…", "In effect now", "alter has changed.",
        lambda client: client.get_queue("alter").effective["x-max-length"] == 7, waiting("alter"),
        fill={"Arguments to set": '{"x-max-length": 7}'},
    ),
    Deed(
        "delay-key", "partitions?queue=delay-key", "Delay…", "Nothing of delay-key", "delay-key is delayed until",
        lambda client: client.list_partitions("delay-key").limited_by == "delay", waiting("delay-key"),
    ),
    Deed(
        "send", of("send"), "Send…", "One message to send.", "was sent to send.", counted("send", delayed=1),
        waiting("send", 0), fill={"Body": '{"a": 1}', "Delay in seconds": "3600"},
    ),
    Deed(
        "publish", "", "Publish a message…", "One message to", "went to publish.", counted("publish", ready=1),
        waiting("publish", 0), fill={"Routing key": "publish", "Body": "text"},
    ),
    Deed(
        "release", of("release", "flight"), "Return…", "2 messages of release", "2 messages returned.",
        counted("release", ready=2, in_flight=1), leased("release"), chosen=2,
    ),
    Deed(
        "reject", of("reject", "flight"), "Reject…", "2 messages of reject will fail", "2 messages rejected.",
        counted("reject", in_flight=1, failed=2), leased("reject"), chosen=2,
    ),
    Deed(
        "delete-messages", of("delete-messages"), "Delete…", "1 message of delete-messages", "1 message deleted.",
        counted("delete-messages", length=2), waiting("delete-messages"), chosen=1,
    ),
    Deed(
        "mark-done", of("mark-done"), "Mark as done…", "3 messages of mark-done", "3 messages marked as done.",
        counted("mark-done", ready=0, done=3), waiting("mark-done"), chosen=3,
    ),
    Deed(
        "move", of("move"), "Move…", "2 messages of move.", "2 messages moved to move-target.",
        both("move", "move-target", 1, 2), two("move"), fill={"To the queue": "move-target"}, chosen=2,
    ),
    Deed(
        "copy", of("copy"), "Copy…", "2 messages of copy.", "2 messages copied to copy-target.",
        both("copy", "copy-target", 3, 2), two("copy"), fill={"To the queue": "copy-target"}, chosen=2,
    ),
    Deed(
        "retry", of("retry", "failed"), "Retry…", "2 failures will be retried", "2 failures retried.",
        counted("retry", ready=2, failed=1), failed("retry"), chosen=2,
    ),
    Deed(
        "delete-failures", of("delete-failures", "failed"), "Delete…", "2 failures will be deleted",
        "2 failures deleted.", counted("delete-failures", failed=1), failed("delete-failures"), chosen=2,
    ),
    Deed(
        "archive-failed", of("archive-failed", "failed"), "Archive failed messages…", "3 failed messages",
        "3 messages archived.", counted("archive-failed", failed=0, archived_failed=3), failed("archive-failed"),
    ),
    Deed(
        "delete-settled", of("delete-settled"), "Delete settled…", "3 done messages of delete-settled",
        "3 messages deleted.", counted("delete-settled", done=0), settled("delete-settled"), typed="delete-settled",
    ),
    Deed(
        "replay", of("replay"), "Replay…", "gets all stored messages", "A replay into replay has begun.",
        counted("replay", ready=3), settled("replay"),
    ),
    Deed(
        "stop-replay", "replays", "Stop…", "The replay into stop-replay will stop", "has stopped.",
        lambda client: all(one["done"] for one in client.replay_progress(["stop-replay"])),
        replaying, row="stop-replay",
    ),
    Deed(
        "cancel-job", "spark-job?id=cancel-job", "Cancel…", "Up to 3 waiting tasks of cancel-job",
        "3 tasks removed; 0 continue.", lambda client: client.get_job("cancel-job").has_ended, job("cancel-job"),
    ),
    Deed(
        "retry-job", "spark-jobs", "Retry…", "2 failed tasks of retry-job will run again",
        "2 failures retried.", counted("retry-job", ready=2), job("retry-job", failed=2), row="retry-job",
    ),
    Deed(
        "delete-job", "spark-job?id=delete-job", "Delete…", "The record of delete-job will be deleted",
        "The job delete-job is deleted.", lambda client: "delete-job" not in [job.job_id for job in client.iter_jobs()],
        job("delete-job", failed=1),
    ),
    Deed(
        "declare-exchange", "exchanges", "Create an exchange…", "A new exchange", "The exchange declared is there.",
        lambda client: "declared" in exchanges(client), fill={"Exchange": "declared"},
    ),
    Deed(
        "delete-exchange", "exchange?name=delete-exchange", "Delete…", "with 0 bindings",
        "The exchange delete-exchange is deleted.", lambda client: "delete-exchange" not in exchanges(client),
        lambda client: client.declare_exchange("delete-exchange"), typed="delete-exchange",
    ),
    Deed(
        "bind", "exchange?name=bind", "Bind a queue…", "will get what is published to bind", "bind is bound to bind.",
        lambda client: client.test_routing("bind", "a.b") == ["bind"],
        unbound,
        fill={"Queue": "bind", "Routing key": "a.*"},
    ),
    Deed(
        "unbind", "exchange?name=unbind", "Unbind…", "will get no more from unbind", "no longer bound",
        lambda client: client.test_routing("unbind", "a.b") == [], bound, row="a.#",
    ),
    Deed("maintain", "store", "Do maintenance now…", "Run maintenance now", "Maintenance is done.", lambda _client: 1),
    Deed(
        "reload", "store", "Read users and certificates again…", "reads its files", "The files are read.",
        lambda _client: 1,
    ),
    Deed("verify-store", "store", "Verify…", "Every file and every record", "The store is clean", lambda _client: 1),
]  # fmt: skip
WORKERS = ["suspend-worker", "resume-worker", "release-worker", "shutdown-worker"]


def test_each_action_is_tried_here() -> None:
    tried = [one.action for one in DEEDS] + WORKERS + ["hand-over"]
    assert sorted(tried) == sorted(ACTIONS)


def act(page: Page, deed: Deed) -> None:
    """Do it as a person does."""
    from playwright.sync_api import expect

    for place in range(deed.chosen):
        page.get_by_role("checkbox").nth(place).check()
    scope = page.get_by_role("row").filter(has_text=deed.row) if deed.row else page
    buttons = scope.get_by_role("button", name=deed.button, exact=True)
    if deed.chosen and buttons.count() > 1:
        buttons = page.get_by_label("Selected messages").get_by_role("button", name=deed.button, exact=True)
    buttons.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("#concerns")).to_contain_text(deed.concerns)
    for label, text in deed.fill.items():
        found = dialog.get_by_label(label, exact=True)
        if text == "yes":
            found.check()
        else:
            found.fill(text)
    confirm = dialog.locator("form > .row button:not([data-close])")
    if deed.typed:
        confirm.click()
        expect(dialog).to_be_visible()  # nothing happens before it is typed
        dialog.get_by_label(f"Type {deed.typed} to confirm").fill(deed.typed)
    confirm.click()
    expect(page.locator("#notices")).to_contain_text(deed.done)
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.action)
def test_an_action(deed: Deed, client: QueueClient, site: str, browser: Browser) -> None:
    deed.prepare(client)
    with opened(browser) as page:
        page.goto(site + deed.path)
        act(page, deed)
    wait_until(lambda: bool(deed.check(client)), 60, deed.action)


# ---------------------------------------------------------------------- workers
@contextmanager
def consumer(url: str, name: str) -> Iterator[tuple[QueueClient, list[int]]]:
    """A client that holds a message of the queue, and what it got."""
    held: list[int] = []
    with QueueClient(url, name=name) as worker:

        def work() -> None:
            for message in worker.consume(name, prefetch=1):
                held.append(message.id)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield worker, held
        finally:
            worker.interrupt()
            thread.join(60)


def test_actions_on_workers(client: QueueClient, url: str, site: str, browser: Browser) -> None:
    waiting("of-worker")(client)
    with opened(browser) as page, consumer(url, "of-worker") as (_worker, held):
        wait_until(lambda: held, 60, "a message is held")
        id = next(one.id for one in client.workers() if one.name == "of-worker")
        path = f"worker?id={id}"
        page.goto(site + path)
        suspended = Deed(
            "", path, "Suspend…", "it keeps the 1 message it holds", "of-worker is suspended", lambda _c: 1
        )
        act(page, suspended)
        wait_until(lambda: client.worker(id).suspended, 60, "it is suspended")
        returned = Deed(
            "", path, "Return its messages…", "The 1 message that of-worker holds", "1 message of of-worker returned",
            lambda _c: 1,
        )  # fmt: skip
        act(page, returned)
        assert client.metrics("of-worker").in_flight == 0
        act(page, Deed("", path, "Resume…", "will get messages again", "of-worker resumed", lambda _c: 1))
        wait_until(lambda: client.metrics("of-worker").in_flight, 60, "it gets messages again")
        act(page, Deed("", path, "Shut down…", "will no longer consume", "1 consumer of of-worker", lambda _c: 1))
        wait_until(lambda: not client.metrics("of-worker").consumers, 60, "it no longer consumes")


# ---------------------------------------------------------------------- a pair of brokers
def test_the_standby_takes_over(tmp_path: Path, browser: Browser) -> None:
    from playwright.sync_api import expect

    with children() as started:
        pair = Pair(str(tmp_path / "store"), tmp_path, started)
        first = pair.start()
        pair.wait_active(first)
        second = pair.start()
        pair.wait_connected(first)
        started.add(server := PageServer(tmp_path, f"{url_of(first)},127.0.0.1:{second.port}"))
        with opened(browser) as page:
            page.goto(f"{server.url}store")
            deed = Deed(
                "hand-over", "store", "Hand over to the standby…", "The standby takes over", "The standby takes over: ",
                lambda _client: 1,
            )  # fmt: skip
            act(page, deed)
            pair.wait_active(second)
            expect(page.locator("main")).to_contain_text(str(second.process.pid))
