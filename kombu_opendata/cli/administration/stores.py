"""Commands ``store inspect|verify|stats|repair``, which read a store directly, whether a broker runs or not.

Backup and restore are in :mod:`.backups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import click

from ...json_values import moment, with_times
from ...readable_text import counted, number, shown
from ..exit_codes import DAMAGED, NOT_NOW, CommandError, CommandGroup
from ..option_types import MESSAGE_ID, limit_option, with_options
from ..target import Target, complete_queues, json_option
from ..terminal.output import print_facts, print_json, print_json_line, say
from ..terminal.tables import Column, print_table

_CELL = 100
_SHOWN_IDS = 20


@click.group("store", cls=CommandGroup)
def store_group() -> None:
    """Inspect, verify, repair, back up and restore stores."""


store_options = with_options(
    click.argument("store", required=False, metavar="[FOLDER|URL]"),
    click.option(
        "--url", "--store", "url", metavar="URL|FOLDER",
        help="the store, as an option; default: the app's folder, or $OPENDATA_QUEUE_URL",
    ),
    click.option(
        "--instance", metavar="NAME",
        help="the database in the store; default: the only one, or the one that is named default",
    ),
    json_option,
)  # fmt: skip


def store_location(store: str | None, url: str | None) -> str:
    """Return the store of the command: a folder, or a bucket's URL."""
    location = store or url
    if location:
        return location
    target = Target()
    if not target.folder:
        raise CommandError(
            f"{target.address} is not a folder on this host: name the store's folder, or its bucket's URL"
        )
    return target.folder


# ---------------------------------------------------------------------- verify
@store_group.command(epilog="Example: opendata-queue store verify s3://bucket/queue")
@store_options
def verify(store: str | None, url: str | None, instance: str | None, as_json: bool) -> None:
    """Check every file, every record and every invariant. Nothing is changed.

    Exits with 4 if the store is damaged or contradicts itself, and with 5 if not everything could be checked.
    """
    from ...offline import verify_store
    from ..terminal.progress import bar

    with bar("verifying") as update:
        report = asyncio.run(
            verify_store(store_location(store, url), instance, progress=lambda far: update(far.done, far.total))
        )
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if report.status.name == "FINDINGS":
        raise CommandError("the store is damaged, or contradicts itself", DAMAGED)
    if report.incomplete:
        raise CommandError("not everything could be checked", NOT_NOW)


def _print_report(report: Any) -> None:
    for finding in report.findings:
        where = "".join(
            f" {name} {shown(value)}"
            for name, value in (("queue", finding.queue), ("message", finding.message_id), ("file", finding.file))
            if value is not None
        )
        say(f"{finding.severity.value}  {finding.code}{where}: {finding.text}")
        say(f"    what it means: {finding.meaning}")
        say(f"    what to do: {finding.remedy}")
    for reason in report.incomplete:
        say(f"not checked: {reason}")
    remaining = sum(report.counts.values()) - len(report.findings)
    if remaining:
        say(f"and {remaining:,} more of the same kinds")
    records = sum(report.records.values())
    verdict = {"CLEAN": "clean", "FINDINGS": "damaged", "INCOMPLETE": "not fully checked"}[report.status.name]
    say(
        f"{verdict}: {counted(report.files, 'file')}, {counted(records, 'record')} and "
        f"{counted(report.messages, 'message')} checked"
    )


# ---------------------------------------------------------------------- repair
@store_group.command(epilog="Example: opendata-queue store repair --drop-damaged /var/lib/app-queue")
@store_options
@click.option("--drop-damaged", is_flag=True, help="give up what is damaged, so that a broker can start")
def repair(store: str | None, url: str | None, instance: str | None, as_json: bool, drop_damaged: bool) -> None:
    """List the losses of a damaged journal, and accept them.

    Without --drop-damaged, nothing is changed, and the exit status is 4 if the journal is damaged. Try to restore the
    damaged file first. No broker may run. The original files are kept beside the journal.
    """
    from ...offline.repair import repair as run

    losses = asyncio.run(run(store_location(store, url), instance, drop_damaged=drop_damaged))
    if as_json:
        print_json(losses.as_dict())
    else:
        _print_repair(losses)
    if not drop_damaged and not losses.is_sound:
        raise CommandError("the journal is damaged: restore its files, or repeat this with --drop-damaged", DAMAGED)


def _print_repair(found: Any) -> None:
    if found.is_sound:
        say("the journal is not damaged, so nothing was changed; store verify checks the other files")
    for path in found.headers:
        say(f"the header of {path} is damaged; nothing is lost with it")
    if found.first is not None:
        say(f"record {found.first.sequence} at byte {found.first.offset} of {found.first.path} is damaged or missing")
        say(f"lost with it: {counted(found.records, 'complete record')} after it")
        if found.unread:
            say(f"{counted(found.unread, 'record')} can't be read, so this list is not complete")
        if found.uncertain:
            say(f"{counted(found.uncertain, 'damaged record')} could be read in part, so the list may be wrong there")
    for queue, ids in sorted(found.published.items()):
        say(f"lost from queue {shown(queue)}: {counted(len(ids), 'message')}: {_some(ids)}")
    for queue, ids in sorted(found.settled.items()):
        say(f"returned to queue {shown(queue)}: {counted(len(ids), 'settled message')}: {_some(ids)}")
    if found.other:
        say(f"lost besides: {counted(found.other, 'other change')}, such as deliveries, definitions and results")
    for path in found.kept:
        say(f"kept as it was: {path}")


def _some(ids: list[int]) -> str:
    remaining = len(ids) - _SHOWN_IDS
    return ", ".join(map(str, ids[:_SHOWN_IDS])) + (
        f" and {remaining:,} more (--json lists all)" if remaining > 0 else ""
    )


# ---------------------------------------------------------------------- stats
@store_group.command(epilog="Example: opendata-queue store stats /var/lib/app-queue --payloads")
@click.option("--payloads", is_flag=True, help="also sum payload bytes by queue; slower")
@store_options
def stats(store: str | None, url: str | None, instance: str | None, payloads: bool, as_json: bool) -> None:
    """Count the queues, records and files of a store."""
    from ..terminal.progress import bar

    with bar("counting") as update:
        report = asyncio.run(_stats(store_location(store, url), instance, payloads, update))
    if as_json:
        print_json(with_times(report.as_dict()))
        return
    running = "none" if report.broker_pid is None else f"pid {report.broker_pid}"
    print_facts(
        {
            "store": report.location,
            "instance": report.instance,
            "created": moment(report.created_at_ms),
            "format": report.format_version,
            "broker": running,
            "messages": report.messages,
            "corrupt records": report.corrupt,
        }
    )
    columns: list[Column] = [
        ("queue", False), ("ready", True), ("delayed", True), ("in flight", True), ("done", True),
        ("failed", True), ("archived failed", True), ("payload bytes", True),
    ]  # fmt: skip
    rows = [
        (name, counts.ready, counts.delayed, counts.in_flight, counts.done, counts.failed,
         counts.archived_failed, "-" if counts.payload_bytes is None else number(sum(counts.payload_bytes.values())))
        for name, counts in sorted(report.queues.items())
    ]  # fmt: skip
    print_table(
        columns if payloads else columns[:-1], rows if payloads else [row[:-1] for row in rows], none="no queues"
    )
    kinds = [
        (name, counts.records, counts.key_bytes + counts.value_bytes) for name, counts in sorted(report.records.items())
    ]
    print_table([("records", False), ("number", True), ("bytes", True)], kinds, none="no records")
    files = [(name, counts.files, counts.bytes) for name, counts in sorted(report.files.items())]
    if report.journal is not None:
        files.append(("journal", report.journal.segments + report.journal.spares, report.journal.bytes))
    if files:
        print_table([("files", False), ("number", True), ("bytes", True)], files, none="")


async def _stats(location: str, instance: str | None, payloads: bool, update: Callable[[int, int | None], None]) -> Any:
    from ...offline import open_store, stats

    async with await open_store(location, instance, who="stats") as store:
        return await stats(store, payloads=payloads, progress=lambda far: update(far.done, far.total))


# ---------------------------------------------------------------------- inspect
@store_group.command(epilog="Example: opendata-queue store inspect /var/lib/app-queue --message 1234")
@store_options
@click.option("--message", "message", type=MESSAGE_ID, help="everything about the message with this id")
@click.option(
    "--queue",
    metavar="QUEUE",
    help="everything about a queue; with --kind, its records of that kind",
    shell_complete=complete_queues,
)
@click.option("--key", metavar="HEX", help="the record with this key")
@click.option("--kind", metavar="KIND", help="records of this kind, such as active or metadata")
@click.option("--prefix", metavar="HEX", default="", help="records whose keys begin with these bytes")
@limit_option("how many records at most", 100, low=1)
def inspect(
    store: str | None,
    url: str | None,
    instance: str | None,
    as_json: bool,
    message: int | None,
    queue: str | None,
    key: str | None,
    kind: str | None,
    prefix: str,
    limit: int,
) -> None:
    """Show a message, a queue, or stored records.

    Records are shown in the order of their keys. With --json, each is a separate document on its line.
    """
    if sum(item is not None for item in (message, key, kind or queue)) > 1:
        raise click.UsageError("choose one of: --message, --key, or --queue with --kind")
    from ...errors import RequestError

    item: bytes | int | str | None = message if message is not None else None
    if key is not None:
        item = _hexadecimal(key, "--key")
        if not item:
            raise click.UsageError("--key is empty: give a whole key, or use --prefix")
    elif queue is not None and kind is None:
        item = queue
    start = _hexadecimal(prefix, "--prefix")
    try:
        if item is not None:
            _print_one(asyncio.run(_inspect(store_location(store, url), instance, item)), as_json)
            return
        query = {"kind": kind, "queue": queue, "prefix": start, "limit": limit}
        records = asyncio.run(_scan(store_location(store, url), instance, query))
    except RequestError as exc:
        if type(exc) is RequestError:
            raise click.UsageError(exc.text) from exc
        raise
    if as_json:
        for record in records:
            print_json_line(record.as_dict())
        return
    columns: list[Column] = [("key", False), ("kind", False), ("of", False), ("bytes", True), ("value", False)]
    rows = [
        (item.key, item.kind, _flat(item.of), item.size, shown(item.problem or item.value, _CELL)) for item in records
    ]
    print_table(columns, rows, none="no records")


def _hexadecimal(text: str, option: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as exc:
        raise click.UsageError(f"{option} {text!r} is not hexadecimal") from exc


async def _inspect(location: str, instance: str | None, what: bytes | int | str) -> Any:
    from ...offline import inspect, open_store

    async with await open_store(location, instance, who="inspect") as store:
        return await inspect(store, what)


async def _scan(location: str, instance: str | None, wanted: dict[str, Any]) -> list[Any]:
    from ...offline import open_store, scan

    async with await open_store(location, instance, who="inspect") as store:
        return [record async for record in scan(store, **wanted)]


def _flat(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _print_one(found: Any, as_json: bool) -> None:
    if as_json:
        print_json(found.as_dict())
        return
    for name, value in found.as_dict().items():
        if isinstance(value, list):
            say(f"{name}: {'' if value else 'none'}")
            for element in value:
                say(f"  {_flat(element) if isinstance(element, dict) else element}")
        elif isinstance(value, dict):
            say(f"{name}:")
            for inner, inside in value.items():
                say(f"  {inner}: {inside}")
        else:
            say(f"{name}: {'' if value is None else value}")
