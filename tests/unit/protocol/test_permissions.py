"""Operations have titles and permissions."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.broker.access.users_format import Patterns
from kombu_opendata.errors import AccessRefused
from kombu_opendata.protocol.messages import OPERATIONS, Bind, Identity, PurgeQueue, Reload, Unbind, WireMessage


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


@pytest.mark.contract(13)
@pytest.mark.parametrize("request_type", [Bind, Unbind])
@pytest.mark.parametrize(
    ("write", "read", "refused"),
    [("^q$", "^x$", ""), ("", "^x$", "write to queue 'q'"), ("^q$", "", "read from exchange 'x'")],
)
def test_a_binding_needs_a_right_on_both_ends(
    request_type: type[WireMessage], write: str, read: str, refused: str
) -> None:
    rights = Rights("ann", "default", Patterns("", write, read))
    check, message = request_type.operation.permission.check, request_type(1, "q", "x", "key", {})
    if not refused:
        check(rights, message)
        return
    with pytest.raises(AccessRefused, match=refused):
        check(rights, message)
