"""A changed users file and open connections; SIGHUP and `broker reload`; what the audit log has of it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.protocol import messages as m

from ...support.kombu_client import Inbox, connected, declare, drain_until, refused, send
from ...support.processes import Children, wait_until
from ...support.raw import RawClient
from ...support.served import COMMAND, ServedBroker
from ...support.users import CHEAP, EVERYTHING, user_table, write_users

HASH = CHEAP.hash("x")


class Site:
    """A broker with users that change."""

    def __init__(self, folder: Path, started: Children) -> None:
        self.folder, self._started = folder, started
        self.users = folder / "users.toml"
        self.write(alice=EVERYTHING)
        self.start()

    def start(self) -> None:
        store = f"file://{self.folder}/store"
        options = ("--store", store, "--listen", "tcp:127.0.0.1:0", "--users", str(self.users))
        self.broker = ServedBroker(self.folder, *options, "--log-format", "json")
        self._started.add(self.broker)
        self.url = f"opendata://%s:x@127.0.0.1:{self.broker.port}"

    def write(self, **users: dict[str, str]) -> None:
        """Replace the file by an admin and these users, with their patterns."""
        tables = [user_table(name, hashed=HASH, instances={"default": rights}) for name, rights in users.items()]
        write_users(self.users, user_table("root", hashed=HASH, instances={}, roles=("admin",)), *tables)

    def reload(self, user: str = "root", *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(COMMAND), "broker", "reload", self.url % user, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def log(self, logger: str = "kombu_opendata.audit") -> list[dict[str, Any]]:
        lines = map(json.loads, self.broker.log.read_text().splitlines())
        return [line for line in lines if line["logger"] == logger]


@pytest.fixture
def site(store_folder: Path, started: Children) -> Iterator[Site]:
    found = Site(store_folder, started)
    yield found
    assert found.broker.terminate() == 0


def test_new_rights_count_for_open_connections(site: Site) -> None:
    inbox = Inbox()
    with connected(site.url % "alice") as alice, connected(site.url % "root") as root:
        channel = alice.channel()
        for name in ("mine", "other"):
            declare(channel, name)
            inbox.consume(channel, name, consumer_tag=name)
        send(channel, "other", "1")
        drain_until(alice, lambda: inbox)
        site.write(alice={"configure": "^mine$", "write": "^mine$", "read": "^mine$"})
        site.reload()
        with pytest.raises(amqp.ConsumerCancelled, match="the broker ended consumer other: may not be read any more"):
            drain_until(alice, lambda: False)
        with pytest.raises(errors.AccessRefused, match="may not write to queue 'other'"):
            send(channel, "other", "2")
        inbox[0].ack()  # what it holds is its own
        watcher = root.channel()
        wait_until(lambda: watcher.queue_declare("other", passive=True).consumer_count == 0, 60, "no consumer")
        send(watcher, "other", "3")
        send(watcher, "mine", "4")
        drain_until(alice, lambda: len(inbox) == 2)
        assert inbox.bodies[1] == "4"
        assert watcher.basic_get("other").body == "3"


def test_a_client_is_told_that_its_consumer_was_cancelled_and_a_waiting_read_ends(site: Site) -> None:
    with RawClient(site.broker.port) as alice:
        alice.hello(user="alice", secret="x")
        alice.declare("q")
        alice.consume("q")
        reading = alice.send(m.Read(0, "q", 1, 1000, 600_000))
        watching = alice.call(m.WatchResults(0, [b"r"]))
        assert isinstance(watching, m.Ok)
        site.write(alice={"configure": "^q", "write": "^q"})
        site.broker.process.send_signal(signal.SIGHUP)
        told = [alice.receive(), alice.receive()]
        assert {type(each) for each in told} == {m.Cancelled, m.ReadMessages}
        assert next(each.rid for each in told if isinstance(each, m.ReadMessages)) == reading
        with RawClient(site.broker.port) as root:
            root.hello(user="root", secret="x")
            root.call(m.StoreResult(0, b"r", 2, b"secret", 0))
        alice.send(m.Ping(0))
        assert isinstance(alice.receive(), m.Ok), "no result was pushed before it"


@pytest.mark.parametrize(
    "condition", [{"selector": "task = 'a'"}, {"equal": {"task": "a"}}, {"grouped": "fill", "group_header": "task"}]
)
def test_a_read_that_searches_gets_nothing_more_and_ends(site: Site, condition: dict[str, Any]) -> None:
    with RawClient(site.broker.port) as alice, RawClient(site.broker.port) as root:
        alice.hello(user="alice", secret="x")
        root.hello(user="root", secret="x")
        alice.declare("q2", {"x-partition-by": "task"})
        reading = alice.send(m.Read(0, "q2", 1, 1000, 600_000, **condition))
        alice.call(m.Ping(0))
        site.write(alice={"configure": "^q", "write": "^q"})
        root.call(m.Reload(0))
        root.publish("q2", 1, headers={"task": "a"})
        found = alice.answer(reading)
        assert found.messages == []


def test_users_who_may_not_connect_any_more_are_cut_off(site: Site) -> None:
    site.write(alice=EVERYTHING, bob=EVERYTHING)
    site.reload()
    with connected(site.url % "alice") as alice, connected(site.url % "bob") as bob:
        for connection in (alice, bob):
            connection.channel().basic_consume(declare(connection.channel(), "q").queue, callback=print)
        tables = [user_table("alice", hashed=HASH, instances={"elsewhere": EVERYTHING})]
        write_users(site.users, user_table("root", hashed=HASH, instances={}, roles=("admin",)), *tables)
        site.broker.process.send_signal(signal.SIGHUP)
        for connection, text in ((alice, "may not use instance 'default'"), (bob, "user 'bob'")):
            with pytest.raises(errors.AccessRefused, match=text):
                drain_until(connection, lambda: False)
    assert any("removed 'bob'; changed 'alice'" in line["message"] for line in site.log())


def test_a_file_that_breaks_changes_nothing(site: Site) -> None:
    with connected(site.url % "alice") as alice:
        channel = alice.channel()
        declare(channel, "q")
        site.users.write_text("[users.alice]\nsecret = 1\n")
        done = site.reload()
        assert (done.returncode, done.stdout) == (1, "")
        assert "the broker keeps what it read from that file before" in done.stderr
        assert "is wrong about user 'alice': Expected `str`, got `int` - at `$.secret`" in done.stderr
        site.broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(site.log("kombu_opendata.broker.process.file_reloads")) >= 2, 60, "two errors")
        assert {line["level"] for line in site.log("kombu_opendata.broker.process.file_reloads")} == {"ERROR"}
        declare(channel, "q2")
        with connected(site.url % "root"):
            pass
        site.users.chmod(0o604)
        assert "can be read or written by every user of this machine (mode 0604)" in site.reload().stderr
        site.write(carol=EVERYTHING)
        site.reload()
    assert refused(site.url % "alice") is not None


def test_a_reload_says_what_is_new(site: Site) -> None:
    site.write(bob=EVERYTHING)
    with RawClient(site.broker.port) as root:
        root.hello(user="root", secret="x")
        assert isinstance(root.call(m.Reload(0)), m.Reloaded)
    assert "no user changed since the file was last read" in site.reload().stdout
    assert json.loads(site.reload("root", "--json").stdout)["certificates"] is False
    changes = [line["message"] for line in site.log() if "was read again by" in line["message"]]
    assert any(text.endswith(": added 'bob'; removed 'alice'") for text in changes)
    assert changes[-1] == "the users file was read again by user 'root': no user changed"


def test_only_an_admin_reloads(site: Site) -> None:
    done = site.reload("alice")
    assert done.returncode == 1
    assert "user 'alice' may not reload the broker's files in instance 'default': that needs the role 'admin'" in (
        done.stderr
    )


def test_the_audit_log(site: Site) -> None:
    site.write(alice={"configure": "^mine", "write": "^mine", "read": "^mine"})
    site.reload()
    with QueueClient(site.url % "alice", name="a client") as alice:
        for _ in range(20):
            with pytest.raises(errors.AccessRefused):
                alice.send("other", "body-s3cret")
        alice.create("mine")
        alice.send("mine", "body-s3cret")
        alice.purge("mine")
        alice.delete_queue("mine")
        with pytest.raises(errors.AccessRefused):
            alice.status()
    found = site.log()
    refusals = [line for line in found if line["message"].startswith("refused")]
    assert [(line["user"], line["right"], line["object"], line["instance"]) for line in refusals] == [
        ("alice", "write", "queue other", "default"), ("alice", "monitor", "role monitor", "default"),
    ]  # fmt: skip
    assert refusals[0]["message"] == (
        "refused: write on queue 'other' in instance 'default' to user 'alice' (client 'a client')"
    )
    assert refusals[1]["message"].startswith("refused: the role 'monitor' in instance 'default' to user 'alice'")
    changes = [line["message"] for line in found if "(client 'a client') " in line["message"]]
    assert changes[-2:] == [
        "user 'alice' (client 'a client') purged queue 'mine' of 1 messages",
        "user 'alice' (client 'a client') deleted queue 'mine', with 0 messages",
    ]
    assert "s3cret" not in site.broker.log.read_text()


def test_a_user_has_not_the_sessions_of_another(site: Site) -> None:
    site.write(alice=EVERYTHING, bob=EVERYTHING)
    site.reload()
    with RawClient(site.broker.port) as alice, RawClient(site.broker.port) as bob:
        alice.hello(user="alice", secret="x", client=b"c" * 16)
        bob.send(m.Hello(0, alice.session, "raw", user="bob", secret="x", resume=True))
        said = bob.last_word()
        assert said is not None
        assert said.text == "this session belongs to another user: begin a new one"
        alice.call(m.DeclareQueue(0, "own", False, True, False, {}, False))
        with RawClient(site.broker.port) as other:
            other.hello(user="bob", secret="x", client=b"c" * 16)
            refusal = other.call(m.Get(0, 1, "own", False))
            assert (refusal.code, "is exclusive to another connection" in refusal.text) == ("access_refused", True)


@pytest.mark.contract(4, 13)
def test_a_session_keeps_its_user_over_a_restart(site: Site) -> None:
    """Also one that holds nothing, until its client had time to come back."""
    site.write(alice=EVERYTHING, bob=EVERYTHING)
    site.reload()
    sessions = [b"h" * 16, b"i" * 16]
    with RawClient(site.broker.port) as holder, RawClient(site.broker.port) as idle:
        for client, session in zip((holder, idle), sessions, strict=True):
            client.hello(session, user="alice", secret="x")
        holder.declare("q")
        holder.publish("q", 1)
        holder.consume("q")
        (held,) = holder.wait_deliveries(1)
        site.broker.kill()
    for place in ("in the journal", "in a checkpoint"):
        site.start()
        for session in sessions:
            with RawClient(site.broker.port) as bob:
                bob.send(m.Hello(0, session, "raw", user="bob", secret="x", resume=True))
                refusal = bob.receive()
                assert isinstance(refusal, m.Failed)
                assert refusal.text == "this session belongs to another user: begin a new one"
        if place == "in the journal":
            assert site.broker.terminate() == 0
    for session in sessions:
        with RawClient(site.broker.port) as alice:
            alice.hello(session, user="alice", secret="x", resume=True, held=[(1, *held.lease)])
