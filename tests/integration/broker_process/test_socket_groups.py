"""A Unix socket for several users of a machine, each a real one: www-data and celery share a broker by a group."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kombu_opendata import errors
from kombu_opendata.broker.process.start_settings import broker_settings
from kombu_opendata.broker.wire.sockets import group_id
from kombu_opendata.configuration.addresses import parse_listen
from kombu_opendata.configuration.options import BrokerOptions

from ...support.broker import EmbeddedBroker
from ...support.other_users import Account
from ...support.processes import Children
from ...support.served import COMMAND, ServedBroker
from ...support.unprivileged import needs_root
from ...support.users import user_table, write_users

GROUP = 61_000
CELERY, WEB, STRANGER = Account(61_001, (GROUP,)), Account(61_002, (GROUP,)), Account(61_003)
CLIENT = """
import sys
from kombu_opendata import QueueClient, errors
url, do, *group = sys.argv[1:]
options = {"broker_options": {"socket_group": group[0]}} if group else {}
patience = 1 if do == "try" else 60
try:
    with QueueClient(url, start_timeout=patience, reconnect_timeout=1, idle_exit=30, **options) as client:
        if do in ("try", "send"):
            client.create("q")
            client.send("q", "a message")
        elif do == "take":
            print(*(message.body for message in client.pop("q")))
except errors.OpenDataError as exc:
    sys.exit(f"{type(exc).__name__}: {exc}")
"""


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of celery for the group, where nobody else can have put anything, unless a test wants it in /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="odq-", dir=getattr(request, "param", "/run")))
    os.chown(folder, CELERY.uid, GROUP)
    folder.chmod(0o750)
    yield folder
    broker = EmbeddedBroker(folder)
    if broker.pid() is not None:
        broker.terminate()
    shutil.rmtree(folder)


def run(account: Account, url: str, do: str, *group: str) -> str:
    """What a client of this user prints, or how it is refused."""
    command = account.python(CLIENT, url, do, *group)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert "Traceback" not in done.stderr, done.stderr
    return (done.stdout if done.returncode == 0 else done.stderr).strip()


@needs_root
def test_a_group_shares_the_broker_of_a_folder(shared: Path) -> None:
    url = f"opendata://{shared}"
    before = run(WEB, url, "try")
    assert before.startswith(f"ConnectionLost: no broker runs for {shared}, which user {CELERY.uid} shares with you")
    assert run(CELERY, url, "send", str(GROUP)) == ""
    assert run(WEB, url, "take") == "a message"
    assert run(WEB, f"opendata://{quote(f'{shared}/broker.sock', safe='')}", "send") == ""
    assert run(CELERY, url, "take") == "a message"
    assert run(STRANGER, url, "take").startswith("AccessRefused: permission denied on")
    _assert_only_the_socket_is_shared(shared)
    as_web = subprocess.run(
        WEB.command(str(COMMAND), "status", str(shared)), capture_output=True, text=True, timeout=60
    )
    assert as_web.returncode == 0, as_web.stderr


def _assert_only_the_socket_is_shared(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert {"broker.sock", "broker.log", "default", "default.journal"} <= names
    for path in folder.iterdir():
        status = path.lstat()
        assert status.st_uid == CELERY.uid
        if path.name == "broker.sock":
            assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, GROUP)
        else:
            assert not status.st_mode & 0o077, path


@needs_root
@pytest.mark.slow
def test_a_store_of_before_is_hidden_from_the_group(shared: Path) -> None:
    url = f"opendata://{shared}"
    shared.chmod(0o700)
    assert run(CELERY, url, "send") == ""
    EmbeddedBroker(shared).terminate()
    for path in shared.iterdir():
        path.chmod(0o755)
    shared.chmod(0o750)
    assert run(CELERY, url, "send", str(GROUP)) == ""
    _assert_only_the_socket_is_shared(shared)


@needs_root
@pytest.mark.slow
def test_without_the_option_the_group_is_not_let_in(shared: Path) -> None:
    url = f"opendata://{shared}"
    assert run(CELERY, url, "send") == ""
    said = run(WEB, url, "take")
    assert said.startswith(f"AccessRefused: permission denied on {shared}/broker.sock")
    assert "a broker lets a group in with --socket-group" in said
    (shared / "broker.sock").chmod(0o666)  # who does this by hand lets nobody in
    assert f"this socket is for user {CELERY.uid} and root, not for user {WEB.uid}" in run(WEB, url, "take")


@needs_root
@pytest.mark.parametrize(
    ("shared", "mode", "group"), [("/tmp", 0o750, GROUP), ("/run", 0o770, GROUP), ("/run", 0o755, STRANGER.uid)],
    indirect=["shared"],
)  # fmt: skip
@pytest.mark.slow
def test_a_folder_that_others_can_have_filled_is_not_trusted(shared: Path, mode: int, group: int) -> None:
    assert run(CELERY, f"opendata://{shared}", "send", str(GROUP)) == ""
    os.chown(shared, CELERY.uid, group)
    shared.chmod(mode)
    said = run(WEB, f"opendata://{shared}", "take")
    assert f"user {CELERY.uid} listens on {shared}/broker.sock, not you or root" in said


@needs_root
def test_a_service_for_a_group(shared: Path, started: Children) -> None:
    """As in deploy/systemd: the socket's folder is the service's, and the store is elsewhere."""
    socket = shared / "q.sock"
    broker = ServedBroker(
        shared, "--store", f"file://{shared}/store", "--listen", f"unix:{socket}", "--socket-group", str(GROUP)
    )
    started.add(broker)
    os.chown(shared, 0, 0)
    shared.chmod(0o755)
    url = f"opendata://{quote(str(socket), safe='')}"
    assert run(WEB, url, "send") == ""
    assert run(CELERY, url, "take") == "a message"
    assert run(STRANGER, url, "take").startswith("AccessRefused: permission denied on")
    assert broker.terminate() == 0


@needs_root
@pytest.mark.slow
def test_users_of_a_group_log_in(shared: Path, started: Children) -> None:
    socket = shared / "q.sock"
    users = write_users(shared / "users", user_table("web", "right"))
    where = ("--store", f"file://{shared}/store", "--listen", f"unix:{socket}", "--users", str(users))
    broker = ServedBroker(shared, *where, "--socket-group", str(GROUP))
    started.add(broker)
    os.chown(shared, 0, 0)
    shared.chmod(0o755)
    place = quote(str(socket), safe="")
    assert run(WEB, f"opendata://web:right@{place}", "send") == ""
    assert "the secret is wrong" in run(WEB, f"opendata://web:wrong@{place}", "send")
    assert run(STRANGER, f"opendata://web:right@{place}", "send").startswith("AccessRefused: permission denied on")
    assert broker.terminate() == 0


# ------------------------------------------------------------------ options
def options(**given: Any) -> BrokerOptions:
    return BrokerOptions(store="memory://x", listen=(parse_listen("unix:/tmp/x.sock"),), **given)


def test_modes() -> None:
    assert broker_settings(options()).socket_access.mode == 0o600
    assert broker_settings(options(socket_group=str(os.getegid()))).socket_access.mode == 0o660
    assert broker_settings(options(socket_mode=0o640, socket_group="0")).socket_access.mode == 0o640


def test_a_socket_for_everybody_needs_users() -> None:
    with pytest.raises(errors.StartError, match="--socket-mode 0666 without --users would let every user"):
        broker_settings(options(socket_mode=0o666))
    assert not broker_settings(options(socket_mode=0o666, allow_anonymous=True)).socket_access.is_private


def test_groups_that_can_not_be_used() -> None:
    with pytest.raises(errors.StartError, match=r"this machine has no such group \(groupadd --system nonesuch\)"):
        group_id("nonesuch")
    with pytest.raises(errors.StartError, match="--socket-group without --listen unix:PATH"):
        broker_settings(BrokerOptions(store="memory://x", listen=(parse_listen("tcp::0"),), socket_group="0"))


@needs_root
def test_a_group_that_the_user_is_not_in(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER.uid, STRANGER.uid)
    words = [str(COMMAND), "broker", "--store", f"{tmp_path}/store", "--listen", f"unix:{tmp_path}/x.sock"]
    command = STRANGER.command(*words, "--socket-group", str(GROUP))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 1
    assert f"user {STRANGER.uid} is not in that group (usermod --append --groups {GROUP} {STRANGER.uid})" in done.stderr
