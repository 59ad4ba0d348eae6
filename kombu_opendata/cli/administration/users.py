"""Commands ``user``: the users in a broker's file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import OpenDataError
from ...readable_text import shown
from ..exit_codes import USAGE, Command, CommandError, CommandGroup, confirm
from ..hints import command
from ..option_types import several
from ..output import Reply, Table
from ..target import prints, reads, yes_option

if TYPE_CHECKING:
    from ...broker.access.rights import User
    from ...queue_client import QueueClient

ROLES = ("monitor", "operator", "admin")
#: names that a Celery app uses beside its queues: remote control, events, results
_CELERY = (r"(.+\.)?celery\.pidbox", r"celeryev(\..+)?", r"amq\.results")

_users_option = click.option(
    "--users",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="OPENDATA_QUEUE_USERS",
    show_envvar=True,
    required=True,
    metavar="FILE",
    help="the file that the broker's --users names",
)


user_group = CommandGroup("user", help="Manage the users in a broker's file.")


def _secret() -> str:
    """Read a secret, from the terminal with confirmation, or from standard input.

    It has no option, because other users could see that in the list of processes.
    """
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True))
    try:
        secret = sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise CommandError("the secret on standard input is not UTF-8", USAGE) from exc
    if "\n" in secret:
        raise CommandError("standard input has more than one line: give the secret alone", USAGE)
    return secret


@click.command("hash-secret", cls=Command, epilog="Example: opendata-queue hash-secret < secret.txt")
@prints
def hash_secret() -> Reply:
    """Print the hash of a secret for the --users file.

    The hash is the secret of a table [users.NAME]; user add writes it there.

    The command prompts for the secret, or reads it from standard input if that is not a terminal. There is no option
    for it, because other users of the machine could see it in the list of processes.
    """
    from ...broker.access.secret_hashes import hash_secret as make

    try:
        hashed = make(_secret())
    except OpenDataError as exc:
        raise CommandError(exc.text, USAGE) from exc
    return Reply({"secret": hashed}, hashed)


_WHEN = "A broker with this file reads it within a second; 'opendata-queue broker reload' does it immediately."


def _changed(path: Path, name: str, text: str, *notes: str) -> Reply:
    """Return the reply to a change: a text, or the changed user as JSON."""
    from ...broker.access.users_file import UsersFile

    return Reply(_facts(UsersFile(path).users[name]), text, notes=[*notes, _WHEN])


@user_group.command(epilog="Example: opendata-queue user add celery --users users.toml")
@click.argument("name")
@_users_option
@several("--role", type=click.Choice(ROLES), help="a role of the user")
@several("--certificate", metavar="NAME", help="a name in client certificates (CN, DNS, URI or email) of this user")
@click.option("--no-secret", is_flag=True, help="the user logs in by certificate only")
@click.option("--new-secret", is_flag=True, help="the user exists, and gets another secret")
@prints
def add(
    name: str, path: Path, roles: tuple[str, ...], certificates: tuple[str, ...], no_secret: bool, new_secret: bool
) -> Reply:
    """Add a user, which has no permissions before 'user permit'.

    The file is created if there is none. The command prompts for the secret, or reads it from standard input if that is
    not a terminal. The file contains only a hash of it.
    """
    from ...broker.access.secret_hashes import hash_secret as make
    from ...broker.access.users_editor import edited

    if no_secret and not certificates:
        raise click.UsageError("--no-secret needs a --certificate, or the user could not log in")
    with edited(path, create=not new_secret) as file:
        if new_secret:
            file.user(name)  # fails if there is no such user
        else:
            file.add(name)
        file.set_secret(name, "" if no_secret else make(_secret()))
        file.set_words(name, "roles", roles)
        file.set_words(name, "certificates", certificates)
    if new_secret or "admin" in roles:
        return _changed(path, name, f"user {shown(name)} {'has a new secret' if new_secret else 'added'}")
    hint = f"It has no permissions yet: '{command('user permit', name)}' with --everything, --celery, …"
    return _changed(path, name, f"user {shown(name)} added", hint)


@user_group.command(epilog="Example: opendata-queue user permit celery --celery --queue mail --users users.toml")
@click.argument("name")
@_users_option
@click.option(
    "--instance",
    metavar="NAME",
    default="default",
    show_default=True,
    help="the instance; '*': each without its own entry",
)
@click.option("--configure", metavar="PATTERN", help="queues and exchanges that it may declare and delete")
@click.option("--write", metavar="PATTERN", help="exchanges that it may publish to, queues that it may bind")
@click.option("--read", metavar="PATTERN", help="queues that it may consume and purge, exchanges that it may bind to")
@click.option("--everything", is_flag=True, help="all three for every name")
@click.option("--celery", is_flag=True, help="what a Celery app needs: producers, workers, inspect, events, Flower")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="with --celery: a queue; default: celery")
@click.option("--nothing", is_flag=True, help="take away the entry for the instance")
@several("--role", type=click.Choice(ROLES), help="a role that it gets")
@click.option("--no-role", "not_roles", type=click.Choice(ROLES), multiple=True, help="a role that it loses")
@prints
def permit(
    name: str,
    path: Path,
    instance: str,
    everything: bool,
    celery: bool,
    queues: tuple[str, ...],
    nothing: bool,
    roles: tuple[str, ...],
    not_roles: tuple[str, ...],
    **rights: str | None,
) -> Reply:
    """Set the permissions of a user in an instance.

    A PATTERN is a regular expression that is searched for in the name: '^mail' permits all names that begin with mail,
    an empty one nothing. Patterns that are not given stay unchanged.
    """
    from ...broker.access.users_editor import edited

    patterns = {right: pattern for right, pattern in rights.items() if pattern is not None}
    choices = (bool(patterns), everything, celery, nothing)
    if sum(choices) > 1:
        raise click.UsageError("give patterns, or one of --everything, --celery and --nothing")
    if queues and not celery:
        raise click.UsageError("--queue goes with --celery")
    if not any((*choices, roles, not_roles)):
        raise click.UsageError("say what: patterns, --everything, --celery, --nothing, --role or --no-role")
    if everything or celery:
        names = "|".join((*map(re.escape, queues or ("celery",)), *_CELERY))
        patterns = dict.fromkeys(("configure", "write", "read"), f"^({names})$" if celery else ".*")
    with edited(path) as file:
        if nothing:
            file.forbid(name, instance)
        elif patterns:
            file.permit(name, instance, patterns)
        file.set_words(name, "roles", roles, not_roles)
    return _changed(path, name, f"user {shown(name)} changed")


@user_group.command("list", epilog="Example: opendata-queue user list --users users.toml")
@_users_option
@prints
def list_(path: Path) -> Reply:
    """List the users of a file, and their permissions."""
    from ...broker.access.users_file import UsersFile

    users = [_facts(user) for user in sorted(UsersFile(path).users.values(), key=lambda user: user.name)]
    headings = ("user", "login", "roles", "instance", "configure", "write", "read")
    rows = [dict(zip(headings, row, strict=True)) for user in users for row in _rows(user)]
    return Reply(users, Table(dict.fromkeys(headings, ""), none="no users", rows=rows))


def _facts(user: User) -> dict[str, Any]:
    from msgspec import to_builtins
    from msgspec.structs import asdict

    table = user.table
    limits = {name: limit for name, limit in to_builtins(table.limits).items() if limit is not None}
    return {
        "name": user.name,
        "secret": bool(table.secret),
        "certificates": list(table.certificates),
        "roles": [role for role in ROLES if role in table.roles],
        "limits": limits,
        "instances": {name: asdict(patterns) for name, patterns in table.instances.items()},
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each instance, or a single row if there is none."""
    logins = ["secret"] if facts["secret"] else []
    logins += [f"certificate {certificate}" for certificate in facts["certificates"]]
    columns = (facts["name"], ", ".join(logins), ", ".join(facts["roles"]))
    is_admin = "admin" in facts["roles"]
    if not facts["instances"]:
        return [(*columns, "every" if is_admin else "none", *([".*" if is_admin else ""] * 3))]
    return [
        (*(columns if number == 0 else ("", "", "")), name, *patterns.values())
        for number, (name, patterns) in enumerate(facts["instances"].items())
    ]


@user_group.command(epilog="Example: opendata-queue user delete celery --users users.toml")
@click.argument("name")
@_users_option
@yes_option
@prints
def delete(name: str, path: Path, yes: bool) -> Reply:
    """Delete a user. The broker closes the user's connections when it reads the file."""
    from ...broker.access.users_editor import edited

    confirm(f"Delete user {shown(name)}?", yes)
    with edited(path) as file:
        file.remove(name)
    document = {"name": name, "deleted": True}
    return Reply(document, f"user {shown(name)} deleted", notes=[_WHEN])


@user_group.command(epilog="Example: opendata-queue user whoami --url opendatas://ann@broker.example.org/app")
@reads
def whoami(client: QueueClient) -> Reply:
    """Show the connected user and its permissions."""
    from msgspec.structs import asdict

    identity = {name: value for name, value in asdict(client.whoami()).items() if name != "rid"}
    login = f"user {shown(identity['user'])}" if identity["user"] else "an anonymous user (the broker has no users)"
    return Reply(
        identity,
        f"You are {login} in instance {shown(identity['instance'])}.",
        f"roles: {', '.join(identity['roles']) or 'none'}",
        *(f"{right}: {shown(identity[right]) or 'nothing'}" for right in ("configure", "write", "read")),
    )
