"""``instance create`` and ``instance list``: the databases of a broker."""

from __future__ import annotations

import click

from .exit_codes import Group
from .target import find, json_option, target_options
from .terminal.output import print_json, print_table, say


@click.group("instance", cls=Group)
def instance_group() -> None:
    """Instances, the databases of a broker: create, list."""


@instance_group.command()
@click.argument("name")
@target_options
@json_option
def create(name: str, url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Create an instance, which URLs may then name.

    The URL of the new one is opendata://host/NAME; at a folder's broker, while it runs,
    opendata://%2FFOLDER%2Fbroker.sock/NAME.

    --url names the broker and an instance that exists, such as the default one. Nothing happens if the instance
    exists.
    """
    from ..client.calls.instances import create_instance

    with find(url, tls_ca).connection() as connection:
        created = create_instance(connection, name)
    if as_json:
        print_json({"instance": name, "created": created})
    else:
        say(f"instance {name} {'created' if created else 'exists already'}")


@instance_group.command("list")
@target_options
@json_option
def list_(url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """List the instances of a broker.

    Of a store in a bucket, only those that are open: named at the start, or used since.
    """
    from ..client.calls.instances import list_instances

    with find(url, tls_ca).connection(looks=True) as connection:
        found = list_instances(connection)
    if as_json:
        print_json([{"instance": name, "open": opened} for name, opened in found.items()])
    else:
        rows = [(name, "yes" if opened else "no") for name, opened in found.items()]
        print_table([("instance", False), ("open", False)], rows, none="no instances")
