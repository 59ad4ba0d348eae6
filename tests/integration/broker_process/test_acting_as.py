"""An admin who acts as another user: that user's rights, and both in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kombu_opendata import QueueClient, errors

from ...support.processes import children, wait_until
from ...support.served import ServedBroker
from ...support.users import user_table, write_users

PATTERNS = {"configure": "^app", "write": "^app", "read": ""}


class Site(NamedTuple):
    url: str
    users: Path
    broker: ServedBroker

    def client(self, user: str, act_as: str = "") -> QueueClient:
        return QueueClient(self.url % user, act_as=act_as, name="page", reconnect_timeout=60)


def users(root: bool = True, ann: bool = True) -> list[str]:
    """The tables; without ``root``, it is no admin, and without ``ann`` there is none."""
    tables = [
        user_table("root", "x", roles=("admin",) if root else ("operator",)),
        user_table("operator", "x", roles=("operator",)),
    ]
    return [*tables, user_table("ann", "y", {"default": PATTERNS}, roles=("monitor",))] if ann else tables


@pytest.fixture
def site(store_folder: Path) -> Iterator[Site]:
    folder = store_folder
    file = write_users(folder / "users", *users())
    with children() as started:
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(file))
        started.add(broker := ServedBroker(folder, *options))
        yield Site(f"opendata://%s:x@127.0.0.1:{broker.port}", file, broker)


def test_the_session_has_the_other_users_rights(site: Site) -> None:
    with site.client("root", "ann") as client:
        who = client.whoami()
        assert (who.user, who.login, who.roles) == ("ann", "root", ["monitor"])
        assert (who.configure, who.write, who.read) == ("^app", "^app", "")
        client.create("app.q")
        client.send("app.q", 1)
        with pytest.raises(errors.AccessRefused, match="user 'ann' may not configure"):
            client.create("other")
        client.delete_queue("app.q")
    log = site.broker.log.read_text()
    assert "user 'ann' (client 'page' of user 'root') deleted queue 'app.q'" in log
    assert "to user 'ann' (client 'page' of user 'root')" in log


def test_who_logs_in_for_themselves(site: Site) -> None:
    with site.client("operator") as client:
        who = client.whoami()
    assert (who.user, who.login, who.roles) == ("operator", "operator", ["monitor", "operator"])


def test_only_an_admin_may(site: Site) -> None:
    with (
        site.client("operator", "ann") as client,
        pytest.raises(errors.AccessRefused, match="may not act as user 'ann'"),
    ):
        client.whoami()


def test_there_must_be_such_a_user(site: Site) -> None:
    with site.client("root", "bob") as client, pytest.raises(errors.AccessRefused, match="can't act as user 'bob'"):
        client.whoami()


@pytest.mark.parametrize("change", [{"root": False}, {"ann": False}], ids=["no admin", "no such user"])
def test_a_change_of_the_file_ends_it(site: Site, change: dict[str, bool]) -> None:
    with site.client("root", "ann") as client, site.client("root", "") as other:
        client.whoami()
        write_users(site.users, *users(**change))
        if change.get("root", True):
            other.reload()

        def is_refused() -> bool:
            try:
                client.whoami()
            except errors.AccessRefused:
                return True
            return False

        wait_until(is_refused, 60, "a refusal")


def test_without_users_the_name_is_for_the_audit_log(store_folder: Path) -> None:
    with children() as started:
        options = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0")
        started.add(broker := ServedBroker(store_folder, *options))
        with QueueClient(f"opendata://127.0.0.1:{broker.port}", act_as="ann", name="page") as client:
            who = client.whoami()
            assert (who.user, who.login, who.roles) == ("", "", ["monitor", "operator", "admin"])
            client.create("q")
            client.delete_queue("q")
        assert "user 'ann' (client 'page' of anonymous) deleted queue 'q'" in broker.log.read_text()
