"""The table of docs/permissions.md is that of the declared operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.protocol.messages import OPERATIONS, Identity, PurgeQueue, Reload, WireMessage

PAGE = Path(__file__).resolve().parents[3] / "docs" / "permissions.md"
HEAD = "| operation | needs |\n|---|---|\n"


def table() -> str:
    """Operations with the same permission in one row, and below it the special cases."""
    titles: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for message in sorted(OPERATIONS, key=lambda message: int(message.__struct_config__.tag or 0)):
        permission = message.operation.permission
        titles.setdefault((permission.text, permission.details), []).append(message.operation.title)
    rows = []
    for (text, details), operations in titles.items():
        rows.append(f"| {'; '.join(operations)} | {text} |")
        rows += [f"| – {case} | {needs} |" for case, needs in details]
    return HEAD + "\n".join(rows) + "\n"


def test_the_page_has_the_permission_of_each_operation() -> None:
    assert HEAD + PAGE.read_text().split(HEAD)[1].split("\n\n")[0] + "\n" == table()


def test_no_two_operations_have_one_title() -> None:
    titles = [message.operation.title for message in OPERATIONS]
    assert sorted(titles) == sorted(set(titles))


@pytest.mark.parametrize(
    ("message", "roles", "read", "may"),
    [
        (PurgeQueue, [], "", False),
        (PurgeQueue, [], "^mine$", True),
        (PurgeQueue, ["monitor"], "", False),
        (PurgeQueue, ["monitor", "operator"], "", True),
        (Reload, ["monitor", "operator"], ".*", False),
        (Reload, ["monitor", "operator", "admin"], ".*", True),
    ],
)
def test_a_user_may_send_a_message_about_some_object(
    message: type[WireMessage], roles: list[str], read: str, may: bool
) -> None:
    assert Identity(0, "ann", "ann", "default", roles, "", "", read).may(message.operation.permission) == may
