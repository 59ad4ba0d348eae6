"""Commands ``instance create`` and ``instance list``."""

from __future__ import annotations

import click

from ..exit_codes import CommandGroup
from ..target import Target, call_options, look_options
from ..terminal.output import print_json, say
from ..terminal.tables import print_table


@click.group("instance", cls=CommandGroup)
def instance_group() -> None:
    """Manage instances, the databases of a broker."""


@instance_group.command(epilog="Example: opendata-queue instance create staging")
@click.argument("name")
@call_options
def create(name: str, target: Target, as_json: bool) -> None:
    """Create an instance.

    Its URL is opendata://host/NAME, or opendata://%2FFOLDER%2Fbroker.sock/NAME while a folder's broker runs.

    --url names the broker with an existing instance, such as the default one. Nothing happens if the new instance
    exists already.
    """
    with target.client() as client:
        created = client.create_instance(name)
    if as_json:
        print_json({"instance": name, "created": created})
    else:
        say(f"instance {name} {'created' if created else 'already exists'}")


@instance_group.command("list", epilog="Example: opendata-queue instance list")
@look_options
def list_(target: Target, as_json: bool) -> None:
    """List the instances of a broker.

    For a store in a bucket, only open instances are listed: those named at startup, or used since.
    """
    with target.client(looks=True) as client:
        instances = client.list_instances()
    if as_json:
        print_json([{"instance": name, "open": is_open} for name, is_open in instances.items()])
    else:
        rows = [(name, "yes" if is_open else "no") for name, is_open in instances.items()]
        print_table([("instance", False), ("open", False)], rows, none="no instances")
