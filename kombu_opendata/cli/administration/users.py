"""Commands ``user``: the users in a broker's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...readable_text import shown
from ..exit_codes import CommandGroup, confirm
from ..hints import command
from ..target import Target, json_option, look_options, yes_option
from ..terminal.output import note, print_json, say
from ..terminal.tables import print_table
from .secret_prompt import read_secret

if TYPE_CHECKING:
    from ...broker.access.rights import User

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


@click.group("user", cls=CommandGroup)
def user_group() -> None:
    """Manage the users in a broker's file."""


def celery_pattern(queues: tuple[str, ...]) -> str:
    """Return the pattern for Celery apps with these queues."""
    return f"^({'|'.join((*map(re.escape, queues), *_CELERY))})$"


def _say_when() -> None:
    note("A broker with this file reads it within a second; 'opendata-queue broker reload' does it at once.")


@user_group.command(epilog="Example: opendata-queue user add celery --users users.toml")
@click.argument("name")
@_users_option
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, help="a role of the user; may be repeated")
@click.option(
    "--certificate",
    "certificates",
    multiple=True,
    metavar="NAME",
    help="a name in client certificates (CN, DNS, URI or email) that log in as this user; may be repeated",
)
@click.option("--no-secret", is_flag=True, help="the user logs in by certificate only")
@click.option("--new-secret", is_flag=True, help="the user exists, and gets another secret")
@json_option
def add(
    name: str,
    path: Path,
    roles: tuple[str, ...],
    certificates: tuple[str, ...],
    no_secret: bool,
    new_secret: bool,
    as_json: bool,
) -> None:
    """Add a user, which has no permissions before 'user permit'.

    The file is created if there is none. The command prompts for the secret, or reads it from standard input if that is
    not a terminal. The file contains only a hash of it.
    """
    from ...broker.access.secret_hashes import hash_secret
    from ...broker.access.users_editor import edited

    if no_secret and not certificates:
        raise click.UsageError("--no-secret needs a --certificate, or the user could not log in")
    with edited(path, create=not new_secret) as file:
        if new_secret:
            file.user(name)  # fails if there is no such user
        else:
            file.add(name)
        file.set_secret(name, "" if no_secret else hash_secret(read_secret()))
        file.set_words(name, "roles", roles)
        file.set_words(name, "certificates", certificates)
    _done(path, name, as_json, f"user {shown(name)} {'has a new secret' if new_secret else 'added'}")
    if not new_secret and "admin" not in roles:
        note(f"It has no rights yet: '{command('user permit', name)}' with --everything, --celery, …")
    _say_when()


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
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="with --celery: a queue of the app; default: celery"
)
@click.option("--nothing", is_flag=True, help="take away the entry for the instance")
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, help="a role that it gets; may be repeated")
@click.option("--no-role", "not_roles", type=click.Choice(ROLES), multiple=True, help="a role that it loses")
@json_option
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
    as_json: bool,
    **given: str | None,
) -> None:
    """Set the permissions of a user in an instance.

    A PATTERN is a regular expression that is searched for in the name: '^mail' permits all names that begin with mail,
    an empty one nothing. Patterns that are not given stay unchanged.
    """
    from ...broker.access.users_editor import edited

    patterns = {right: pattern for right, pattern in given.items() if pattern is not None}
    choices = (bool(patterns), everything, celery, nothing)
    if sum(choices) > 1:
        raise click.UsageError("give patterns, or one of --everything, --celery and --nothing")
    if queues and not celery:
        raise click.UsageError("--queue goes with --celery")
    if not any((*choices, roles, not_roles)):
        raise click.UsageError("say what: patterns, --everything, --celery, --nothing, --role or --no-role")
    if everything or celery:
        common_pattern = celery_pattern(queues or ("celery",)) if celery else ".*"
        patterns = dict.fromkeys(("configure", "write", "read"), common_pattern)
    with edited(path) as file:
        if nothing:
            file.forbid(name, instance)
        elif patterns:
            file.permit(name, instance, patterns)
        file.set_words(name, "roles", roles, not_roles)
    _done(path, name, as_json, f"user {shown(name)} changed")
    _say_when()


def _done(path: Path, name: str, as_json: bool, text: str) -> None:
    """Print the change, or as JSON the user after it."""
    from ...broker.access.users_file import UsersFile

    if as_json:
        print_json(_facts(UsersFile(path).users[name]))
    else:
        say(text)


@user_group.command("list", epilog="Example: opendata-queue user list --users users.toml")
@_users_option
@json_option
def list_(path: Path, as_json: bool) -> None:
    """List the users of a file, and their permissions."""
    from ...broker.access.users_file import UsersFile

    users = sorted(UsersFile(path).users.values(), key=lambda user: user.name)
    if as_json:
        print_json([_facts(user) for user in users])
        return
    headings = ("user", "login", "roles", "instance", "configure", "write", "read")
    rows = [row for user in users for row in _rows(_facts(user))]
    print_table([(heading, False) for heading in headings], rows, none="no users")


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
    login = ", ".join(
        (["secret"] if facts["secret"] else [])
        + [f"certificate {certificate}" for certificate in facts["certificates"]]
    )
    columns = (facts["name"], login, ", ".join(facts["roles"]))
    is_admin = "admin" in facts["roles"]
    if not facts["instances"]:
        return [(*columns, "every" if is_admin else "none", *([".*" if is_admin else ""] * 3))]
    return [
        (*(columns if number == 0 else ("", "", "")), name, *patterns.values())
        for number, (name, patterns) in enumerate(facts["instances"].items())
    ]


@user_group.command(epilog="Example: opendata-queue user remove celery --users users.toml")
@click.argument("name")
@_users_option
@yes_option
@json_option
def remove(name: str, path: Path, yes: bool, as_json: bool) -> None:
    """Remove a user. The broker closes the user's connections when it reads the file."""
    from ...broker.access.users_editor import edited

    confirm(f"Remove user {shown(name)}?", yes)
    with edited(path) as file:
        file.remove(name)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        say(f"user {shown(name)} removed")
    _say_when()


@user_group.command(epilog="Example: opendata-queue user whoami --url opendatas://ann@broker.example.org/app")
@look_options
def whoami(as_json: bool, target: Target) -> None:
    """Show the connected user and its permissions."""
    from msgspec.structs import asdict

    with target.client(looks=True) as client:
        identity = {name: value for name, value in asdict(client.whoami()).items() if name != "rid"}
    if as_json:
        print_json(identity)
        return
    login = f"user {shown(identity['user'])}" if identity["user"] else "an anonymous user (the broker has no users)"
    say(f"You are {login} in instance {shown(identity['instance'])}.")
    say(f"roles: {', '.join(identity['roles']) or 'none'}")
    for right in ("configure", "write", "read"):
        say(f"{right}: {shown(identity[right]) or 'nothing'}")
