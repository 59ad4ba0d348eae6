"""Login by client certificate."""

from __future__ import annotations

from ...errors import AccessRefused
from .users_file import UsersFile

_SHOWN = 100


def user_by_certificate(users: UsersFile, names: tuple[str, ...], user: str, *, has_secret: bool) -> str:
    """Return the user that a verified certificate logs in as; empty if the client's user and secret must be checked.

    A client with a secret may have a certificate that no user has, unless its user has certificates.

    Args:
        names: names in the certificate, the most specific first.
        user: the user that the client requests; may be empty.
        has_secret: the client also sends a secret.

    Raises:
        AccessRefused: no user has the certificate, or another user has it.
    """
    owners = [users.certificates[name].name for name in names if name in users.certificates]
    names_text = ", ".join(name[:_SHOWN] for name in names) or "without names"
    if not owners and not has_secret:
        text = (
            f"the client's certificate ({names_text}) is no user's: add one of its names to the certificates of a user "
            "in "
        )
        raise AccessRefused(f"{text}the broker's users file, or log in with a user and a secret")
    user_entry = users.users.get(user)
    if user and user not in owners and (owners or (user_entry is not None and user_entry.table.certificates)):
        text = (
            f"the client's certificate ({names_text}) is not one of user {user[:_SHOWN]!r}: use that user's certificate"
        )
        raise AccessRefused(f"{text}, or leave the user out of the URL", user=user[:_SHOWN])
    return "" if has_secret else user or owners[0]
