"""Which actions a user is offered: those that are not refused in any case. The broker checks each call by itself."""

from __future__ import annotations

from ...protocol.messages import Identity

#: by action: the role that is enough, and the right that is enough on what its pattern permits
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
#: of every other action, such as those on workers
_ELSE = ("operator", "")


def is_offered(action: str, who: Identity | None) -> bool:
    """Whether this user may do it somewhere; yes if it is not known who this is, as the broker is away."""
    if who is None:
        return True
    role, right = _NEEDS.get(action, _ELSE)
    return role in who.roles or bool(right and getattr(who, right))
