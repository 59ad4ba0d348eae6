"""Commands ``store backup`` and ``store restore``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ...configuration.kinds import WholeNumberKind
from ...readable_text import counted
from ..exit_codes import Command
from ..option_types import Bounded
from ..target import json_option
from ..terminal.output import print_json, say
from ..terminal.tables import Column, print_table
from .stores import store_location, store_options

if TYPE_CHECKING:
    from ...offline.backup.catalogue import Backup

_COLUMNS: list[Column] = [
    ("backup", False), ("instances", False), ("messages", True), ("bytes", True), ("version", False), ("store", False),
]  # fmt: skip


@click.command(
    cls=Command, epilog="Example: opendata-queue store backup /backups/app-queue /var/lib/app-queue --keep 14"
)
@click.argument("target", metavar="TARGET")
@store_options
@click.option("--list", "listed", is_flag=True, help="only list the backups in TARGET")
@click.option(
    "--keep", type=Bounded(WholeNumberKind(1)), help="afterwards remove all but the newest N backups in TARGET"
)
def backup(
    target: str, store: str | None, url: str | None, instance: str | None, as_json: bool, listed: bool, keep: int | None
) -> None:
    """Back up a store into TARGET; a broker may be running.

    TARGET is a folder or a bucket's URL, for the backups of one store, which share files: only new files are copied.
    The backup contains everything that the broker confirmed before it. An interrupted backup does not count; run it
    again.
    """
    if listed:
        _list(target, as_json)
        return
    from ...offline.backup.save import backup as save
    from ..terminal.progress import bar

    location = store_location(store, url)
    with bar("backing up") as update:
        result = asyncio.run(
            save(
                location, target, instance,
                now=datetime.now(UTC), keep=keep, progress=lambda far: update(far.done, far.total),
            )
        )  # fmt: skip
    if as_json:
        print_json(
            _facts(result.backup)
            | {"copied_files": result.copied_files, "copied_bytes": result.copied_bytes}
            | {"removed": result.removed, "freed_bytes": result.freed_bytes}
        )
        return
    say(
        f"backup {result.backup.id}: {counted(result.backup.messages, 'message')} in queues, "
        f"{result.backup.bytes:,} bytes; copied {counted(result.copied_files, 'file')}, {result.copied_bytes:,} bytes"
    )
    if result.removed:
        say(f"removed {counted(len(result.removed), 'backup')} and {result.freed_bytes:,} bytes")


def _list(target: str, as_json: bool) -> None:
    from ...offline.backup.catalogue import Catalogue
    from ...offline.backup.file_locations import open_place

    backups = Catalogue(open_place(target)).all()
    if as_json:
        print_json([_facts(item) for item in backups])
        return
    rows = [
        (item.id, ", ".join(item.instances), item.messages, item.bytes, item.version, item.source) for item in backups
    ]  # fmt: skip
    print_table(_COLUMNS, rows, none="no backups")


def _facts(one: Backup) -> dict[str, Any]:
    return {
        "id": one.id,
        "created_at": one.created_at.isoformat(),
        "version": one.version,
        "store": one.source,
        "bytes": one.bytes,
        "instances": {
            name: {
                "format": each.store_format,
                "last_commit": each.last_commit,
                "last_wal": each.last_wal,
                "files": len(each.files),
                "queues": each.queues,
            }
            for name, each in one.instances.items()
        },
    }


@click.command(cls=Command, epilog="Example: opendata-queue store restore /backups/app-queue /var/lib/new-queue")
@click.argument("target", metavar="BACKUPS")
@click.argument("destination", metavar="FOLDER|URL")
@click.option("--backup", "id", metavar="ID", default="", help="the backup to restore; default: the newest")
@json_option
def restore(target: str, destination: str, id: str, as_json: bool) -> None:
    """Make a store from a backup.

    BACKUPS is the folder or the URL that store backup wrote to. The store is made in FOLDER or at the URL, a prefix of
    a bucket, which must be empty. Every checksum is verified. If the command is interrupted, run it again; start no
    broker there before it has ended.
    """
    from ...offline.backup.restore import restore as make
    from ..terminal.progress import bar

    with bar("restoring") as update:
        record = asyncio.run(make(target, destination, id, progress=lambda far: update(far.done, far.total)))
    if as_json:
        print_json(_facts(record))
        return
    say(f"restored the backup {record.id}: {counted(record.messages, 'message')} in queues, {record.bytes:,} bytes")
