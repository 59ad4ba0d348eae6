"""What users see of messages and queues that they may not read: nothing, or as monitors no contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.messages import Lease
from kombu_opendata.protocol.task_reports import TaskReport, TaskState

from ...support.kombu_client import refused
from ...support.processes import children
from ...support.raw import RawClient
from ...support.served import ServedBroker
from ...support.users import EVERYTHING, user_table, write_users

HEADERS = {"task": "mail.send", "id": "1", "token": "s3cret", "argsrepr": "('s3cret',)"}
MINE = {"configure": "^mine", "write": "^mine", "read": "^mine"}


class World:
    """A broker whose queues ``mine`` and ``other`` have a message each, a third message is in both, one failed."""

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.log = log
        self.url = f"opendata://%s:x@127.0.0.1:{port}"

    def client(self, user: str) -> QueueClient:
        return QueueClient(self.url % user)


@pytest.fixture(scope="module")
def world(module_store_folder: Path) -> Iterator[World]:
    folder = module_store_folder
    users = write_users(
        folder / "users",
        user_table("root", "x", {}, roles=("admin",)),
        user_table("typo", "x", {"default": MINE, "hiddn": MINE}),
        user_table("all", "x", {"default": EVERYTHING}),
        user_table("mine", "x", {"default": MINE}),
        user_table("watcher", "x", {"default": {}}, roles=("monitor",)),
        user_table("steers", "x", {"default": {}}, roles=("operator",)),
        user_table("both", "x", {"default": MINE}, roles=("monitor",)),
    )
    with children() as started:
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
        broker = ServedBroker(folder, *options, "--instance", "default", "--instance", "hidden")
        started.add(broker)
        found = World(broker.port, broker.log)
        with found.client("root") as admin:
            for name in ("mine", "other"):
                admin.create(name)
                admin.send(name, {"secret": "s3cret"}, headers=HEADERS)
            admin.send("other", "fails", headers=HEADERS)
            for message in admin.read("other", qty=2):
                if message.body == "fails":
                    admin.reject("other", message)
                else:
                    admin.release("other", message)
        yield found
        assert broker.terminate() == 0
        assert "s3cret" not in broker.log.read_text()


def ids(page: Any) -> set[str]:
    return {status.queue for one in page for status in one.queues}


def test_a_monitor_sees_messages_without_their_contents(world: World) -> None:
    with world.client("watcher") as watcher:
        (peeked,) = watcher.peek("other", 10)
        found = watcher.get(peeked.id)
        listed = watcher.list_messages()
        attempts = watcher.list_attempts()
        assert (peeked.body, found.message.body) == (b"", b"")
        assert peeked.headers == {"task": "mail.send", "id": "1"}
        for headers in (found.metadata, *(one.headers for one in listed.items)):
            assert (headers["task"], headers["token"]) == ("mail.send", "")
        assert ids(listed.items) == {"mine", "other"}
        assert attempts.items
        assert all(one.event is None or one.event.headers["token"] == "" for one in attempts.items)
        with pytest.raises(errors.AccessRefused, match=r"may not read from exchange 'amq\.all' \(all messages\)"):
            watcher.list_attempts(bodies=True)
        with pytest.raises(errors.AccessRefused):
            watcher.list_messages(headers={"token": ["s3cret"]})
        for seen in (peeked, found, listed, attempts):
            assert "s3cret" not in repr(seen)


def test_who_may_read_a_queue_sees_its_messages_whole(world: World) -> None:
    for user in ("mine", "both", "all"):
        with world.client(user) as client:
            (peeked,) = client.peek("mine")
            assert peeked.body == {"secret": "s3cret"}
            assert client.get(peeked.id).metadata["token"] == "s3cret"
            (listed,) = client.list_messages(queues=["mine"], headers={"token": ["s3cret"]}).items
            assert listed.headers["token"] == "s3cret"
    with world.client("both") as both:
        assert both.peek("other")[0].body == b""


def test_what_a_user_may_not_see_is_not_there(world: World) -> None:
    with world.client("root") as root, world.client("mine") as mine:
        (other,) = root.peek("other")
        with pytest.raises(errors.MessageNotFound):
            mine.get(other.id)
        assert [queue.name for queue in mine.list_queues()] == ["mine"]
        assert list(mine.metrics_all()) == ["mine"]
        assert mine.retrieve_message(other.id) is None
        attempt = root.list_attempts().items[0]
        assert mine.retrieve_attempt(attempt.id) is None
        with pytest.raises(errors.AccessRefused):
            mine.metrics("other")


def test_a_readable_queue_does_not_open_the_messages_of_others(world: World) -> None:
    with world.client("root") as root:
        (other,) = root.peek("other")
        (mine,) = root.peek("mine")
    narrow = {"x-filter": "token = 'a'", "x-filter-mode": "all"}
    for user in ("mine", "both"):
        with RawClient(world.port) as raw:
            raw.hello(user=user, secret="x")
            found = raw.call(m.GetMessage(0, other.id, "mine"))
            assert "s3cret" not in repr(found)
            assert bool(found.headers) == (user == "both")
            raw.call(m.DeclareQueue(0, "mine.filtered", True, False, False, narrow, False))
            explained = raw.call(m.Explain(0, "mine.filtered", other.id))
            assert isinstance(explained, m.Failed)
            assert (explained.values["right"], explained.values["name"]) == ("read", "amq.all")
            assert raw.call(m.Explain(0, "mine.filtered", mine.id)).report["filter"]["headers"] == {"token": "s3cret"}


def test_a_misspelt_instance_tells_no_names_of_others(world: World) -> None:
    said = refused(f"{world.url % 'typo'}/hiddn")
    assert isinstance(said, errors.InstanceNotFound)
    assert "it has default." in said.text
    assert "hidden" not in said.text


def test_only_instances_with_an_entry_are_listed(world: World) -> None:
    with world.client("watcher") as watcher, world.client("root") as root:
        assert list(watcher.status()["instances"]) == ["default"]
        assert set(root.status()["instances"]) == {"default", "hidden"}


def test_tasks_are_reported_by_their_sessions_and_by_who_may_read_their_queues(world: World) -> None:
    raised = TaskReport(TaskState.RAISED, exception="app.Forged")

    def report(user: str, leases: list[Lease]) -> None:
        with RawClient(world.port) as other:
            other.hello(user=user, secret="x")
            for lease in leases:
                other.send(m.ReportTasks(1, [(m.Outcome.REPORT, *lease, raised)]))
            other.call(m.Ping(0))

    with RawClient(world.port) as worker, world.client("root") as root:
        worker.hello(user="all", secret="x")
        worker.declare("runs")
        worker.call(m.DeclareQueue(0, "runs.transient", False, False, True, {}, False))
        for number, name in enumerate(("runs", "runs", "runs.transient"), 1):
            worker.publish(name, number)
            worker.consume(name, str(number))
            lease = worker.wait_deliveries(number)[-1].lease
            worker.send(m.Settle(number, m.Outcome.START, 1, [lease]))
        worker.call(m.Ping(0))
        leases = [delivery.lease for delivery in worker.deliveries]
        for user in ("mine", "watcher"):
            report(user, leases)
        assert root.list_attempts(queues=["runs"]).items == ()
        worker.send(m.ReportTasks(4, [(m.Outcome.REPORT, *leases[0], TaskReport(TaskState.SUCCEEDED))]))
        worker.call(m.Ping(0))
        report("all", leases[1:2])
        found = root.list_attempts(queues=["runs"], order="asc").items
        assert [(one.state, one.exception) for one in found] == [("succeeded", ""), ("raised", "app.Forged")]


def test_an_alteration_that_is_only_tried_tells_no_headers(world: World) -> None:
    guess = {"x-filter": "token LIKE 's3%'", "x-filter-mode": "all"}
    examined = []
    for user in ("root", "steers"):
        with world.client(user) as client:
            examined.append(client.alter("mine", guess, dry_run=True).counts["examined"])
    assert examined == [1, 0]


def test_the_audit_log_names_the_queues_whose_failures_were_handled(world: World) -> None:
    with world.client("root") as root:
        root.create("mended")
        root.send("mended", "fails", headers=HEADERS)
        (message,) = root.read("mended", qty=1)
        root.reject("mended", message)
        assert root.retry_failures(queues=["mended"], target="mine").redriven == 1
    assert "ran 1 failed messages and 0 acknowledged tasks of queue 'mended', in queue 'mine', again" in (
        world.log.read_text()
    )
