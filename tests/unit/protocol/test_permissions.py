"""Operations have titles and permissions."""

from __future__ import annotations

import pytest

from kombu_opendata.protocol.messages import OPERATIONS, Identity, PurgeQueue, Reload, WireMessage


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
