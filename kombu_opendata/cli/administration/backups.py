"""Commands ``store backup`` and ``store restore``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ...configuration.kinds import WholeNumberKind
from ...readable_text import counted
from ..exit_codes import Command
from ..option_types import validated
from ..output import Columns, Reply, Table
from ..progress import bar
from ..target import prints
from .stores import store_location, store_options

if TYPE_CHECKING:
    from ...offline.backup.backup_catalogue import Backup


@click.command(
    cls=Command, epilog="Example: opendata-queue store backup /backups/app-queue /var/lib/app-queue --keep 14"
)
@click.argument("target", metavar="TARGET")
@store_options
@click.option("--list", "listed", is_flag=True, help="only list the backups in TARGET")
@click.option("--keep", type=validated(WholeNumberKind(1)), help="then delete all but the newest N backups in TARGET")
@prints
def backup(
    target: str, store: str | None, url: str | None, instance: str | None, listed: bool, keep: int | None
) -> Reply:
    """Back up a store into TARGET; a broker may be running.

    TARGET is a folder or a bucket's URL, for the backups of one store, which share files: only new files are copied.
    The backup contains everything that the broker confirmed before it. An interrupted backup does not count; run it
    again.
    """
    if listed:
        return _list(target)
    from ...offline.backup.save import backup as save

    location = store_location(store, url)
    with bar("backing up") as update:
        result = asyncio.run(
            save(
                location,
                target,
                instance,
                now=datetime.now(UTC),
                keep=keep,
                progress=lambda far: update(far.done, far.total),
            )
        )
    copied = {"copied_files": result.copied_files, "copied_bytes": result.copied_bytes}
    lines = [
        f"backup {result.backup.id}: {counted(result.backup.messages, 'message')} in queues, "
        f"{result.backup.bytes:,} bytes; copied {counted(result.copied_files, 'file')}, {result.copied_bytes:,} bytes"
    ]
    if result.removed:
        lines.append(f"deleted {counted(len(result.removed), 'backup')} and {result.freed_bytes:,} bytes")
    return Reply(
        _facts(result.backup) | copied | {"deleted": result.removed, "freed_bytes": result.freed_bytes},
        *lines,
    )


def _list(target: str) -> Reply:
    from ...offline.backup.backup_catalogue import Catalogue
    from ...offline.backup.folders import open_place

    backups = Catalogue(open_place(target)).all()
    columns: Columns = {
        "backup": "id",
        "instances": lambda item: ", ".join(item.instances),
        "messages#": "", "bytes#": "", "version": "", "store": "source",
    }  # fmt: skip
    return Reply([_facts(item) for item in backups], Table(columns, none="no backups", rows=backups))


def _facts(backup: Backup) -> dict[str, Any]:
    return {
        "id": backup.id,
        "created_at": backup.created_at.isoformat(),
        "version": backup.version, "store": backup.source, "bytes": backup.bytes,
        "instances": {
            name: {
                "format": each.store_format, "last_commit": each.last_commit, "last_wal": each.last_wal,
                "files": len(each.files),
                "queues": each.queues,
            }
            for name, each in backup.instances.items()
        },
    }  # fmt: skip


@click.command(cls=Command, epilog="Example: opendata-queue store restore /backups/app-queue /var/lib/new-queue")
@click.argument("target", metavar="BACKUPS")
@click.argument("destination", metavar="FOLDER|URL")
@click.option("--backup", "id", metavar="ID", default="", help="the backup to restore; default: the newest")
@prints
def restore(target: str, destination: str, id: str) -> Reply:
    """Make a store from a backup.

    BACKUPS is the folder or the URL that store backup wrote to. The store is made in FOLDER or at the URL, a prefix of
    a bucket, which must be empty. Every checksum is verified. If the command is interrupted, run it again; start no
    broker there before it has ended.
    """
    from ...offline.backup.restore import restore as make

    with bar("restoring") as update:
        record = asyncio.run(make(target, destination, id, progress=lambda far: update(far.done, far.total)))
    size = f"{counted(record.messages, 'message')} in queues, {record.bytes:,} bytes"
    return Reply(_facts(record), f"restored the backup {record.id}: {size}")
