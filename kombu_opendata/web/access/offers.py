"""Visibility of actions: buttons for those that the broker may permit. The broker checks each call independently."""

from __future__ import annotations

from ...protocol.messages import Identity

#: by action: the role that suffices, and the permission that suffices on what its pattern permits
_NEEDS = {
    "reload": ("admin", ""), "hand-over": ("admin", ""),
    "create-queue": ("admin", "configure"), "drop-queue": ("admin", "configure"),
    "declare-exchange": ("admin", "configure"), "delete-exchange": ("admin", "configure"),
    "bind": ("admin", "write"), "unbind": ("admin", "write"), "send": ("admin", "write"), "publish": ("admin", "write"),
    "purge": ("operator", "read"), "release": ("operator", "read"), "archive": ("operator", "read"),
    "dead-letter": ("operator", "read"), "delete-messages": ("operator", "read"),
    "move": ("admin", "read"), "copy": ("admin", "read"), "retry": ("operator", "read"),
    "pause": ("operator", "configure"), "resume": ("operator", "configure"), "alter": ("operator", "configure"),
    "replay": ("operator", "configure"), "stop-replay": ("operator", "configure"),
    "dismiss": ("operator", "configure"), "archive-failed": ("operator", "configure"),
    "delete-failed": ("operator", "configure"),
}  # fmt: skip
#: for every other action, such as those on workers
_ELSE = ("operator", "")


def is_offered(action: str, who: Identity | None) -> bool:
    """Return True if the user may perform the action on some object.

    True also if the user is unknown, as the broker is unavailable.
    """
    if who is None:
        return True
    role, right = _NEEDS.get(action, _ELSE)
    return role in who.roles or bool(right and getattr(who, right))
