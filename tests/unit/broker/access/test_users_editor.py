"""Editing a users file: comments, owner and mode stay, and a wrong file is never written."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path

import pytest

from kombu_opendata.broker.access.users_editor import edited
from kombu_opendata.broker.access.users_file import UsersFile
from kombu_opendata.errors import InvalidUsersFile, RequestError
from tests.support.users import CHEAP, EVERYTHING, write_users

HASH = CHEAP.hash("x")
FILE = f"""\
# the team's users

[users.alice]  # since 2026
secret = "{HASH}"
instances.default = {{ configure = "", write = "^mail", read = "" }}

[users.bob]
certificates = ["bob.example.org"]  # no secret
roles = ["monitor"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_users(tmp_path / "users.toml", FILE)


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    with edited(path, create=True) as file:
        file.add("a.b c")
        file.set_secret("a.b c", HASH)
        file.permit("a.b c", "*", EVERYTHING)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert UsersFile(path).users["a.b c"].rights("any").read["q"]
    assert os.listdir(tmp_path) == ["users.toml"]


def test_what_is_not_changed_stays(path: Path) -> None:
    path.chmod(0o640)
    inode = path.stat().st_ino
    with edited(path) as file:
        file.permit("alice", "default", {"read": r"^(it's|a\.b)$"})
        file.permit("alice", "shop", EVERYTHING)
        file.set_words("bob", "roles", ("operator", "monitor"), ("admin",))
    text = path.read_text()
    for line in FILE.splitlines():
        if line.startswith(("#", "[", "secret", "certificates")):
            assert line in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_ino != inode, "replaced in one step"
    users = UsersFile(path).users
    alice = users["alice"].table.instances["default"]
    assert (alice.configure, alice.write, alice.read) == ("", "^mail", r"^(it's|a\.b)$")
    assert users["alice"].rights("shop").write["q"]
    assert users["bob"].table.roles == {"monitor", "operator"}


def test_users_and_entries_are_removed(path: Path) -> None:
    with edited(path) as file:
        file.remove("bob")
        file.forbid("alice", "default")
    assert list(UsersFile(path).users) == ["alice"]
    assert UsersFile(path).users["alice"].table.instances == {}


def test_what_can_not_be_done_changes_nothing(path: Path) -> None:
    wrong: list[tuple[str, type[Exception], str]] = [
        ("file.remove('carol')", RequestError, "there is no user 'carol' in the file; it has: alice, bob"),
        ("file.add('bob')", RequestError, "there is a user 'bob' already: --new-secret"),
        ("file.forbid('bob', 'x')", RequestError, "user 'bob' has no entry for instance 'x'"),
        ("file.permit('bob', 'x', {'read': '('})", InvalidUsersFile, "is not a regular expression of RE2"),
        ("file.set_words('bob', 'certificates', (), ('bob.example.org',))", InvalidUsersFile, "this user can't log in"),
        ("(file.remove('alice'), file.remove('bob'))", InvalidUsersFile, "names no user"),
        ("file.add('carol')", InvalidUsersFile, "gives user 'carol' neither a secret nor certificates"),
    ]
    for code, kind, text in wrong:
        with pytest.raises(kind, match=re.escape(text)), edited(path) as file:
            eval(code, {"file": file})
    assert path.read_text() == FILE
    assert os.listdir(path.parent) == ["users.toml"]
    with pytest.raises(RequestError, match="there is no users file"), edited(path.with_name("other")):
        pass
    path.write_text("[users")
    with pytest.raises(InvalidUsersFile, match="is not valid TOML"), edited(path, create=True):
        pass


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    with edited(link) as file:
        file.remove("bob")
    assert link.is_symlink()
    assert list(UsersFile(path).users) == ["alice"]


def test_edits_at_the_same_time_are_all_there(path: Path) -> None:
    def add(name: str) -> None:
        with edited(path) as file:
            file.add(name)
            file.set_secret(name, HASH)

    threads = [threading.Thread(target=add, args=(f"user-{number}",)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(UsersFile(path).users) == 12


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_stays(path: Path) -> None:
    os.chown(path, 12345, 54321)
    with edited(path) as file:
        file.remove("bob")
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (12345, 54321)
