"""Folders, files and sockets that another user made, or may write to. Nobody is the stranger, and root the victim."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata import errors
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.offline.files.store_location import running_broker
from kombu_opendata.private_folder import PrivateFolder
from kombu_opendata.url import Address, parse

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import refused
from ...support.processes import Children, wait_until
from ...support.served import ServedBroker
from ...support.status import read_report
from ...support.unprivileged import NOBODY, needs_root, unprivileged

PLACES = ["broker.pid", "broker.log", "broker.lock", "broker.start.lock"]


@pytest.fixture
def victims_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "precious"
    file.write_text("precious")
    yield file
    assert file.read_text() == "precious"


def served(folder: Path, tmp_path: Path, started: Children) -> dict[str, object]:
    """What a broker says that an operator starts on the folder."""
    broker = ServedBroker(tmp_path, "--store", f"file://{folder}", "--listen", "tcp:127.0.0.1:0")
    started.add(broker)
    assert broker.wait(60) == 1
    return broker.report


@needs_root
@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777])
def test_a_strangers_folder(mode: int, store_folder: Path, tmp_path: Path, started: Children) -> None:
    os.chown(store_folder, NOBODY, NOBODY)
    store_folder.chmod(mode)
    error = refused(f"opendata://{store_folder}")
    assert isinstance(error, errors.UnsafeFolder)
    assert f"{store_folder} belongs to user nobody: use a folder of your own" in str(error)
    if mode == 0o755:
        assert served(store_folder, tmp_path, started)["code"] == "unsafe_folder"
    assert not list(store_folder.iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to(mode: int, store_folder: Path, tmp_path: Path, started: Children) -> None:
    store_folder.chmod(mode)
    error = refused(f"opendata://{store_folder}")
    assert isinstance(error, errors.UnsafeFolder)
    assert f"(mode {mode:o}): chmod 700 {store_folder}, or use another folder" in str(error)
    if mode == 0o770:
        assert served(store_folder, tmp_path, started)["code"] == "unsafe_folder"
    assert not list(store_folder.iterdir())


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("how", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_a_link_where_a_file_of_the_broker_should_be(
    how: object, name: str, store_folder: Path, victims_file: Path, tmp_path: Path, started: Children
) -> None:
    if how is os.link:
        victims_file = store_folder.parent / f"{store_folder.name}.precious"  # of the same file system
        victims_file.write_text("precious")
    try:
        how(victims_file, store_folder / name)  # type: ignore[operator]
        error = refused(f"opendata://{store_folder}")
        assert isinstance(error, errors.UnsafeFolder)
        assert f"{store_folder}/{name} is " in str(error)
        wait_until(lambda: running_broker(store_folder) is None, 60, "the end of the broker that was refused")
        if name in ("broker.pid", "broker.lock"):
            assert served(store_folder, tmp_path, started)["code"] == "unsafe_folder"
        assert victims_file.read_text() == "precious"
    finally:
        if how is os.link:
            victims_file.unlink()


@needs_root
@pytest.mark.parametrize("name", [*PLACES, "default"])
def test_a_strangers_file_in_a_folder_that_was_open_once(name: str, store_folder: Path) -> None:
    (store_folder / name).touch()
    os.chown(store_folder / name, NOBODY, NOBODY)
    error = refused(f"opendata://{store_folder}")
    assert isinstance(error, errors.UnsafeFolder)
    assert f"{store_folder}/{name} belongs to user nobody" in str(error)


@needs_root
def test_what_is_roots_may_lie_in_a_users_folder(store_folder: Path) -> None:
    """As ``lost+found`` does in a volume."""
    store_folder.chmod(0o755)
    mine = store_folder / "mine"
    (mine / "lost+found").mkdir(parents=True)
    os.chown(mine, NOBODY, NOBODY)
    mine.chmod(0o700)
    with unprivileged(), PrivateFolder(str(mine)) as folder:
        folder.check_entries()
    shutil.rmtree(mine)


@needs_root
def test_a_volume_that_root_made_for_a_group(store_folder: Path) -> None:
    """As Kubernetes does with ``fsGroup``; access by others stands for that by the group here."""
    store_folder.chmod(0o2777)
    with unprivileged():
        with pytest.raises(
            errors.UnsafeFolder, match="belongs to user root: use a folder of your own, such as"
        ) as said:
            PrivateFolder(str(store_folder))
        assert f"such as {store_folder}/queue," in str(said.value)
        PrivateFolder(f"{store_folder}/queue").close()
    store_folder.chmod(0o700)


def test_a_link_to_another_programs_lock_is_no_broker(store_folder: Path, tmp_path: Path) -> None:
    """``broker stop`` would end that program."""
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (store_folder / "broker.lock").symlink_to(tmp_path / "lock")
        assert running_broker(store_folder) is None
        (store_folder / "broker.lock").unlink()


@needs_root
def test_a_link_to_a_folder(store_folder: Path) -> None:
    real, link = store_folder / "real", store_folder / "link"
    link.symlink_to(real)
    real.mkdir(mode=0o700)
    os.lchown(link, NOBODY, NOBODY)
    error = refused(f"opendata://{link}")
    assert isinstance(error, errors.UnsafeFolder)
    assert "is a symbolic link of user nobody" in str(error)
    os.lchown(link, 0, 0)
    connection = BrokerConnection(parse(f"opendata://{link}"), Options())
    connection.connect()
    connection.close()
    EmbeddedBroker(real).terminate()


@needs_root
def test_a_stranger_who_listens_gets_nothing(store_folder: Path) -> None:
    os.chown(store_folder, NOBODY, NOBODY)
    store_folder.chmod(0o755)
    path = store_folder / "broker.sock"
    with socket.socket(socket.AF_UNIX) as stranger:
        with unprivileged():
            stranger.bind(str(path))
            stranger.listen()
        error = refused(f"opendata://{store_folder}")
        assert isinstance(error, errors.AccessRefused)
        assert f"user nobody listens on {path}, not you or root" in str(error)
        stranger.settimeout(10)
        with stranger.accept()[0] as caught:
            assert caught.recv(1000) == b"", "not a byte"


@needs_root
def test_a_stranger_who_connects_is_refused(store_folder: Path, broker_url: str) -> None:
    with pytest.raises(errors.ConnectionLost):
        read_report(broker_url)  # what a client needs is imported
    owner = BrokerConnection(parse(broker_url), Options())
    owner.connect()
    store_folder.chmod(0o755)
    (store_folder / "broker.sock").chmod(0o666)
    with unprivileged(), pytest.raises(errors.AccessRefused, match="for user root and root, not for user nobody"):
        read_report(broker_url)
    store_folder.chmod(0o700)
    owner.close()
    assert "not for user nobody" in (store_folder / "broker.log").read_text()


@needs_root
def test_missing_rights_are_called_that(store_folder: Path, tmp_path: Path) -> None:
    mine = store_folder / "mine"
    mine.mkdir()
    os.chown(mine, NOBODY, NOBODY)
    store_folder.chmod(0o755)
    url = Address("embedded", folder=str(mine)).as_uri()
    mine.chmod(0)
    with unprivileged(), pytest.raises(errors.OpenDataError) as caught:
        BrokerConnection(parse(url), Options()).connect()
    assert isinstance(caught.value, (errors.StoreUnwritable, errors.AccessRefused))
    assert f"permission denied on {mine}" in caught.value.text
    assert f"{mine} is yours and has mode 000; chmod u+rwx {mine}" in caught.value.text
    assert "belongs" not in caught.value.text

    mine.chmod(0o700)
    os.chown(mine, 0, 0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(mine / "broker.sock"))
        with unprivileged(), pytest.raises(errors.AccessRefused) as caught:
            BrokerConnection(parse(url), Options()).connect()
    assert f"permission denied on {mine}/broker.sock: {mine} belongs to user root" in caught.value.text
    with (
        unprivileged(),
        pytest.raises(errors.StoreUnwritable, match=r"permission denied on .*: .* belongs to user root"),
    ):
        BrokerConnection(parse(f"opendata://{store_folder}/new"), Options()).connect()
