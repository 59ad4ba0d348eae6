"""Which user a client's certificate logs in as."""

from __future__ import annotations

from ...errors import AccessRefused
from .users_file import UsersFile

_SHOWN = 100


def user_by_certificate(users: UsersFile, names: tuple[str, ...], user: str, *, has_secret: bool) -> str:
    """The user that a verified certificate logs in as; empty if the client's user and secret must be checked.

    A client with a secret may have a certificate that is nobody's, unless its user has certificates.

    Args:
        names: those in the certificate, the most telling first.
        user: who the client says it is; may be empty.
        has_secret: it gives a secret, too.

    Raises:
        AccessRefused: the certificate is nobody's, or another user's.
    """
    owners = [users.certificates[name].name for name in names if name in users.certificates]
    shown = ", ".join(name[:_SHOWN] for name in names) or "without names"
    if not owners and not has_secret:
        text = (
            f"the client's certificate ({shown}) is no user's: add one of its names to the certificates of a user in "
        )
        raise AccessRefused(f"{text}the broker's users file, or log in with a user and a secret")
    known = users.users.get(user)
    if user and user not in owners and (owners or (known is not None and known.table.certificates)):
        text = f"the client's certificate ({shown}) is not one of user {user[:_SHOWN]!r}: use that user's certificate"
        raise AccessRefused(f"{text}, or leave the user out of the URL", user=user[:_SHOWN])
    return "" if has_secret else user or owners[0]
