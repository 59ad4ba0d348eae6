"""``user add|permit|list|delete``, with a broker that follows the file."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.broker.access.users_file import UsersFile

from ...support.kombu_client import connected, declare, refused, send, take_bodies
from ...support.processes import Children, wait_until
from ...support.served import COMMAND, ServedBroker
from .conftest import run

SECRET = "s3cret of the user"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.toml"


def user(path: Path, *words: str, stdin: str = "", code: int = 0) -> Any:
    done = run("user", *words, stdin=stdin, OPENDATA_QUEUE_USERS=str(path))
    assert done.returncode == code, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done


def test_a_broker_follows_the_file(path: Path, store_folder: Path, started: Children) -> None:
    user(path, "add", "app", stdin=f"{SECRET}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    options = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(path))
    broker = ServedBroker(store_folder, *options)
    started.add(broker)
    url = f"opendata://app:{SECRET.replace(' ', '%20')}@127.0.0.1:{broker.port}"
    assert isinstance(refused(url), errors.AccessRefused), "no entry for an instance"

    told = user(path, "permit", "app", "--configure", "^mine", "--write", "^mine", "--read", "^mine")
    assert told.stdout == "user app changed\n"
    assert "A broker with this file reads it within a second" in told.stderr
    wait_until(lambda: refused_or_none(url) is None, 60, "the user may connect")
    with connected(url) as connection:
        channel = connection.channel()
        declare(channel, "mine")
        send(channel, "mine", "1")
        assert take_bodies(channel, "mine") == ["1"]
        with pytest.raises(errors.AccessRefused):
            declare(channel, "other")
    user(path, "add", "root", "--role", "admin", stdin="x")
    wait_until(lambda: refused_or_none(f"opendata://root:x@127.0.0.1:{broker.port}") is None, 60, "the admin is known")
    user(path, "delete", "app", "--yes")
    done = run("broker", "reload", f"opendata://root:x@127.0.0.1:{broker.port}")
    assert done.returncode == 0, done.stderr
    assert isinstance(refused(url), errors.AccessRefused)
    assert broker.terminate() == 0


def refused_or_none(url: str) -> Exception | None:
    try:
        with connected(url):
            return None
    except errors.OpenDataError as exc:
        return exc


def test_what_the_verbs_write(path: Path) -> None:
    user(path, "add", "worker", stdin=SECRET)
    before = UsersFile(path).hash_of("worker")
    user(path, "permit", "worker", "--celery", "--queue", "mail", "--queue", "a.b")
    user(path, "permit", "worker", "--instance", "*", "--everything", "--role", "monitor")
    user(path, "add", "proxy", "--no-secret", "--certificate", "proxy.example.org", "--role", "operator")
    found = {one["name"]: one for one in json.loads(user(path, "list", "--json").stdout)}
    pattern = r"^(mail|a\.b|(.+\.)?celery\.pidbox|celeryev(\..+)?|amq\.results)$"
    assert found["worker"] == {
        "name": "worker", "secret": True, "certificates": [], "roles": ["monitor"], "limits": {},
        "instances": {
            "default": dict.fromkeys(("configure", "write", "read"), pattern),
            "*": dict.fromkeys(("configure", "write", "read"), ".*"),
        },
    }  # fmt: skip
    assert (found["proxy"]["secret"], found["proxy"]["certificates"]) == (False, ["proxy.example.org"])
    table = user(path, "list").stdout
    assert "certificate proxy.example.org" in table
    assert "argon2" not in table + json.dumps(found)

    user(path, "add", "worker", "--new-secret", stdin="another")
    assert UsersFile(path).hash_of("worker") != before
    assert UsersFile(path).users["worker"].table.instances["*"].read == ".*"
    user(path, "permit", "worker", "--nothing", "--instance", "*")
    user(path, "permit", "worker", "--no-role", "monitor")
    assert set(UsersFile(path).users["worker"].table.instances) == {"default"}
    assert not UsersFile(path).users["worker"].table.roles


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("add one", 1, "there is a user 'one' already"),
        ("add two --no-secret", 2, "--no-secret needs a --certificate"),
        ("add two --new-secret", 1, "there is no user 'two' in the file; it has: one"),
        ("permit two --everything", 1, "there is no user 'two'"),
        ("permit one", 2, "say what: patterns, --everything"),
        ("permit one --everything --celery", 2, "give patterns, or one of"),
        ("permit one --queue a", 2, "--queue goes with --celery"),
        ("permit one --read (", 1, "'(' is not a regular expression of RE2: missing )"),
        ("permit one --nothing", 1, "has no entry for instance 'default'"),
        ("delete one", 2, "There is no terminal to ask on: add --yes"),
        ("delete one --yes", 1, "names no user, so no login is possible"),
    ],
)
def test_what_can_not_be_done(path: Path, words: str, code: int, text: str) -> None:
    user(path, "add", "one", stdin="x")
    before = path.read_bytes()
    assert text in user(path, *words.split(), stdin="x", code=code).stderr
    assert path.read_bytes() == before


def test_the_secret_is_asked_for_twice_on_a_terminal(path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [str(COMMAND), "user", "add", "app", "--users", str(path)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b""
        for prompt in (b"Secret: ", b"Repeat for confirmation: "):
            while prompt not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, f"{SECRET}\n".encode())
        while b"user app added" not in shown:
            shown += os.read(ours, 1000)
        assert process.wait(60) == 0
    os.close(ours)
    assert SECRET.encode() not in shown
    assert "app" in UsersFile(path).users
