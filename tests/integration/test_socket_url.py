"""A broker that listens on a Unix socket is named by a URL, everywhere a URL is taken."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery

from kombu_opendata import QueueClient, errors
from kombu_opendata.broker.wire.logins import FAILURES_PER_ADDRESS
from kombu_opendata.celery_integration.broker_access import access_of
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.socket.connect import connect_socket_url
from kombu_opendata.url import Address, parse

from ..support.kombu_client import connected, declare, open_connection, refused, send, take_bodies
from ..support.processes import Children
from ..support.served import COMMAND, ServedBroker
from ..support.status import read_report
from ..support.unprivileged import NOBODY, needs_root, unprivileged
from ..support.users import user_table, write_users


@pytest.fixture
def serve(store_folder: Path, tmp_path: Path, started: Children) -> Callable[..., ServedBroker]:
    """Runs a broker on a socket outside of its store's folder."""

    def run(path: Path, *options: str) -> ServedBroker:
        store = f"file://{store_folder}/store"
        child = ServedBroker(tmp_path, "--store", store, "--listen", f"unix:{path}", *options)
        started.add(child)
        return child

    return run


def url_of(path: Path, instance: str = "", login: str = "") -> str:
    return f"opendata://{login}{quote(str(path), safe='')}/{instance}"


def test_all_that_takes_a_url_takes_it(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    path = store_folder / "App.sock"
    broker = serve(path, "--instance", "default", "--instance", "jobs")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    url = url_of(path, "jobs")
    with connected(url) as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", b"x")
        assert take_bodies(channel, "q") == [b"x"]
        info = connection.info()
        assert (info["hostname"], info["port"], info["virtual_host"]) == (quote(str(path), safe=""), None, "jobs")
    with QueueClient(url) as client:
        assert [info.name for info in client.list_queues()] == ["q"]
    assert read_report(url)["pid"] == broker.pid
    with access_of(url).connect() as driver:
        assert list(driver.staging.iter_jobs()) == []
    shown = subprocess.run(
        [COMMAND, "queue", "list", "--json", "--url", url], capture_output=True, text=True, timeout=60
    )
    assert [one["name"] for one in json.loads(shown.stdout)] == ["q"], shown.stderr
    app = Celery("socket", broker=url, backend=url, set_as_current=False)
    app.backend.store_result("id", 7, "SUCCESS")
    assert app.AsyncResult("id").get(timeout=60) == 7
    app.close()


def test_it_is_one_of_a_list(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    path = store_folder / "App.sock"
    serve(path)
    nobody = url_of(store_folder / "nobody.sock")
    connection = open_connection(f"{nobody};{url_of(path)}")
    with connection:
        connection.ensure_connection(max_retries=3, interval_start=0)
        assert connection.as_uri() == url_of(path, "default")
        assert connection.clone().as_uri() == url_of(path, "default")


def test_nobody_listens(store_folder: Path) -> None:
    path = store_folder / "typo.sock"
    error = refused(url_of(path))
    assert isinstance(error, errors.ConnectionLost)
    assert f"no broker listens on {path}: start it with --listen unix:{path}, or check the path" in str(error)
    assert isinstance(refused(url_of(store_folder / ("x" * 120))), errors.SocketPathTooLong)


@needs_root
def test_other_users_of_the_machine_log_in(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    path = store_folder / "app.sock"
    users = store_folder / "users"
    write_users(users, user_table("alice", "s3cret", roles=("monitor",)))
    serve(path, "--users", str(users))
    store_folder.chmod(0o755)
    read_report(url_of(path, login="alice:s3cret@"))  # what a client needs is imported
    with unprivileged():
        assert read_report(url_of(path, login="alice:s3cret@"))["connections"] == 1
        with pytest.raises(errors.AccessRefused, match="alice"):
            read_report(url_of(path, login="alice:wrong@"))
    store_folder.chmod(0o700)


@needs_root
def test_a_local_users_guesses_lock_out_nobody_else(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    path = store_folder / "app.sock"
    users = store_folder / "users"
    write_users(users, user_table("alice", "s3cret", roles=("monitor",)))
    broker = serve(path, "--users", str(users))
    store_folder.chmod(0o755)
    with pytest.raises(errors.AccessRefused):
        read_report(url_of(path, login="alice:typo@"))  # what a client needs is imported
    with unprivileged():
        for number in range(FAILURES_PER_ADDRESS):
            with pytest.raises(errors.AccessRefused):
                read_report(url_of(path, login=f"alice:guess-{number}@"))
    assert read_report(url_of(path, login="alice:s3cret@"))["connections"] == 1
    assert f"at local user {NOBODY})" in broker.log.read_text()
    store_folder.chmod(0o700)


@needs_root
def test_without_logins_it_is_for_its_own_user(serve: Callable[..., ServedBroker], store_folder: Path) -> None:
    path = store_folder / "app.sock"
    serve(path)
    store_folder.chmod(0o755)
    with unprivileged(), pytest.raises(errors.AccessRefused, match=r"permission denied on .* belongs to user root"):
        read_report(url_of(path))
    store_folder.chmod(0o700)


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A folder where only root could have made it, as systemd makes one below /run."""
    folder = Path(tempfile.mkdtemp(prefix="odq-", dir="/run"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def dial_as_root(path: Path) -> None:
    """Connect to what a process of nobody's listens on."""
    with socket.socket(socket.AF_UNIX) as other:
        with unprivileged():
            other.bind(str(path))
            other.listen()
        connect_socket_url(Address("unix", host=str(path)), Options()).close()


@needs_root
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /run")
def test_another_users_broker_is_trusted_where_no_stranger_can_be(run_folder: Path, store_folder: Path) -> None:
    os.chown(run_folder, NOBODY, NOBODY)
    dial_as_root(run_folder / "app.sock")
    run_folder.chmod(0o775)
    with pytest.raises(errors.AccessRefused, match="user nobody listens on"):
        dial_as_root(run_folder / "open.sock")
    os.chown(store_folder, NOBODY, NOBODY)  # below /tmp, where anybody makes folders
    with pytest.raises(errors.AccessRefused, match="only the broker's user and root"):
        dial_as_root(store_folder / "app.sock")
    os.chown(store_folder, 0, 0)


@needs_root
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /run")
@pytest.mark.parametrize("to_folder", [False, True], ids=["the socket", "its folder"])
def test_a_strangers_link_to_the_strangers_own_folder(run_folder: Path, to_folder: bool) -> None:
    """Where the socket really is, nobody else can be; but who made the link?"""
    own, shared = run_folder / "own", run_folder / "shared"
    for folder, mode in ((own, 0o700), (shared, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    os.chown(own, NOBODY, NOBODY)
    with unprivileged(), socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(own / "app.sock"))
        stranger.listen()
        link = shared / "link"
        link.symlink_to(own if to_folder else own / "app.sock")
        os.seteuid(0)
        connect_socket_url(Address("unix", host=str(own / "app.sock")), Options()).close()
        with pytest.raises(errors.AccessRefused, match="user nobody listens on"):
            connect_socket_url(Address("unix", host=str(link / "app.sock" if to_folder else link)), Options())


@needs_root
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /run")
def test_a_link_of_the_administrators(run_folder: Path) -> None:
    own = run_folder / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    (run_folder / "link").symlink_to("./own/../own")
    dial_as_root(run_folder / "link" / "app.sock")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("opendata://%2Frun%2Fapp.sock:5677/x", "neither a port nor TLS"),
        ("opendatas://%2Frun%2Fapp.sock", "neither a port nor TLS"),
        ("opendata://%2Frun%2Fapp.sock/a/b", "instance is one name"),
    ],
)
def test_a_wrong_url(url: str, says: str) -> None:
    with pytest.raises(errors.InvalidURL, match=says):
        parse(url)


def test_the_url_reads_back() -> None:
    url = "opendata://al%40ice:s3%2Fcret@%2Frun%2FA%20b.sock/inst"
    address: Any = parse(url)
    assert (address.kind, address.host, address.user, address.secret) == ("unix", "/run/A b.sock", "al@ice", "s3/cret")
    assert address.as_uri(include_secret=True) == url
    assert str(address) == url.replace("s3%2Fcret", "**")
