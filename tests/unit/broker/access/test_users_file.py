"""The users file: what it may hold, what is refused, what stays when it breaks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kombu_opendata.broker.access.secret_hashes import decoy, hash_secret, is_hash
from kombu_opendata.broker.access.users_editor import edited
from kombu_opendata.broker.access.users_file import UsersFile
from kombu_opendata.errors import AccessRefused, InvalidUsersFile, RequestError
from tests.support.users import CHEAP, user_table, write_users

HASH = CHEAP.hash("secret")
ALICE = f'[users.alice]\nsecret = "{HASH}"\n'


def write(path: Path, text: str) -> Path:
    return write_users(path, text)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"# us\n\nalice:{HASH}\n", 3, r"has the form name:hash, which is no longer read: .* user add makes one"),
        ('[users.alice]\nsecret = "plain"\n', 0, "has no Argon2 hash as the secret of user 'alice'"),
        (ALICE.replace(HASH, HASH[:-6]), 0, "has no Argon2 hash as the secret of user 'alice'"),
        (ALICE.replace("m=64", "m=99999999"), 0, "has no Argon2 hash"),
        ("[users.alice]\n", 0, "gives user 'alice' neither a secret nor certificates"),
        (f'{ALICE}\n[users.alice]\nroles = ["admin"]\n', 4, "is not valid TOML"),
        ("[users.alice\n", 1, "is not valid TOML"),
        (f"a = {'[' * 3000}", 0, "is not valid TOML"),
        (f"a = {'9' * 5000}", 0, "is not valid TOML"),
        (f'{ALICE}roles = ["boss"]\n', 0, r"wrong about user 'alice': Invalid enum value 'boss'"),
        (f"{ALICE}role = []\n", 0, "wrong about user 'alice': Object contains unknown field `role`: do you mean roles"),
        (f"{ALICE}limits = {{ connections = 0 }}\n", 0, "wrong about user 'alice': Expected `int` >= 1"),
        (f'{ALICE}[users.alice.instances.default]\nread = "("\n', 0, "'\\(' is not a regular expression of RE2: m"),
        (f'{ALICE}[users.alice.instances.default]\nread = "(?!x)"\n', 0, "is not a regular expression of RE2"),
        (f"{ALICE}[user.bob]\n", 0, "has a table 'user': it has"),
        (f'{ALICE}certificates = ["a"]\n[users.bob]\ncertificates = ["a"]', 0, "gives the certificate 'a' to 'alice'"),
        ("users = 1\n", 0, "has users = …"),
        ("[instances.default.limits]\nqueues = 10\n", 0, "names no user, so no login is possible"),
        (f"{ALICE}[instances.default.limits]\nqueue = 10\n", 0, "wrong about instance 'default': .*do you mean queues"),
    ],
    ids=[
        "old", "plain secret", "cut hash", "costly hash", "no login", "twice", "syntax", "nesting", "digits", "role",
        "key", "limit", "pattern", "look-ahead", "table", "certificate twice", "no table", "nobody", "instance",
    ],
)  # fmt: skip
def test_a_file_that_can_not_be_used(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path / "users", text)
    with pytest.raises(InvalidUsersFile, match=said) as caught:
        UsersFile(path)
    assert caught.value.values == {"path": str(path), "line": line}
    assert HASH[-20:] not in caught.value.text


def test_all_faults_are_told(tmp_path: Path) -> None:
    text = """
[users.alice]
secret = "plain"
[users.bob]
role = ["monitor"]
roles = ["boss"]
certificates = ["b"]
[users.carol]
certificates = ["c"]
[users.carol.instances.default]
read = "("
[users.dave]
[user.eve]
[instances.default.limits]
queue = 10
"""
    with pytest.raises(InvalidUsersFile, match="has 7 faults:") as caught:
        UsersFile(write(tmp_path / "users", text))
    told = caught.value.text.splitlines()[1:]
    parts = [
        "a table 'user'", "secret of user 'alice'", "user 'bob': Object contains unknown field `role`",
        "user 'bob': Invalid enum value 'boss'", "user 'carol': ", "user 'dave' neither", "instance 'default'",
    ]  # fmt: skip
    assert len(told) == len(parts)
    for line, part in zip(told, parts, strict=True):
        assert line.startswith("  it ")
        assert part in line


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "users", "")
    path.write_text(ALICE, encoding="utf-8-sig")
    assert set(UsersFile(path).users) == {"alice"}
    with edited(path) as editor:
        editor.set_words("alice", "roles", ("monitor",))
    assert path.read_bytes().startswith(b"[users.alice]")


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsersFile, match="can't be read: No such file"):
        UsersFile(tmp_path / "users")
    path = tmp_path / "bytes"
    write(path, "").write_bytes(b"# us\n\xff\n")
    with pytest.raises(InvalidUsersFile, match=r"line 2 of the users file .* is not UTF-8"):
        UsersFile(path)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666, 0o601])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "users", ALICE)
    path.chmod(mode)
    with pytest.raises(InvalidUsersFile, match=f"by every user of this machine \\(mode {mode:04o}\\): chmod 600"):
        UsersFile(path)
    path.chmod(0o640)
    assert "alice" in UsersFile(path).users


def test_what_a_user_may_do_depends_on_the_instance(tmp_path: Path) -> None:
    one = user_table("alice", "x", {"default": {"write": "^a"}, "*": {"read": ".*"}})
    two = user_table("bob", "x", {"shop": {"write": ".*"}}, roles=("operator",))
    users = UsersFile(write_users(tmp_path / "users", one, two)).users
    default, other = users["alice"].rights("default"), users["alice"].rights("other")
    assert (default.write["abc"], default.write["b"], default.read["abc"], default.configure["abc"]) == (
        True, False, False, False,
    )  # fmt: skip
    assert (other.write["abc"], other.read["abc"], other.instance) == (False, True, "other")
    assert users["bob"].rights("shop").roles == {"monitor", "operator"}
    with pytest.raises(AccessRefused, match="user 'bob' may not use instance 'default'") as caught:
        users["bob"].rights("default")
    assert caught.value.values == {
        "right": "enter", "kind": "instance", "name": "default", "user": "bob", "instance": "default",
    }  # fmt: skip


def test_a_file_that_breaks_leaves_the_users_as_they_were(tmp_path: Path) -> None:
    path = write(tmp_path / "users", ALICE)
    users = UsersFile(path)
    before = dict(users.users)
    write(path, "users")
    with pytest.raises(InvalidUsersFile, match="is not valid TOML"):
        users.reload()
    assert not users.reload(), "said once for each change"
    with pytest.raises(InvalidUsersFile, match="is not valid TOML"):
        users.reload(always=True)
    path.unlink()
    with pytest.raises(InvalidUsersFile, match="can't be read"):
        users.reload()
    assert not users.reload()
    assert users.users == before
    write(path, ALICE + user_table("bob", "b"))
    os.utime(path, ns=(5, 5))
    assert users.reload()
    assert users.users["alice"] is before["alice"], "with all that was decided"
    assert set(users.users) == {"alice", "bob"}


def test_hashes() -> None:
    made = hash_secret("sécret")
    assert is_hash(made)
    assert is_hash(decoy())
    assert [len(part) for part in decoy().split("$")] == [len(part) for part in made.split("$")]
    with pytest.raises(RequestError, match="the secret is empty"):
        hash_secret("")
