"""Commands ``store inspect|verify|stats|repair``, which read a store directly, whether a broker runs or not.

Backup and restore are in :mod:`.backups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import click

from ...errors import RequestError
from ...json_values import moment, with_times
from ...readable_text import counted, number, shown
from ..exit_codes import DAMAGED, NOT_NOW, CommandError, CommandGroup
from ..option_types import MESSAGE_ID, limit_option, with_options
from ..output import JsonLines, Reply, Table
from ..progress import bar
from ..target import Target, complete_queues, prints

_CELL = 100
_SHOWN_IDS = 20


store_group = CommandGroup("store", help="Inspect, verify, repair, back up and restore stores.")


store_options = with_options(
    click.argument("store", required=False, metavar="[FOLDER|URL]"),
    click.option(
        "--url",
        "--store",
        "url",
        metavar="URL|FOLDER",
        help="the store, as an option; default: the app's folder, or $OPENDATA_QUEUE_URL",
    ),
    click.option(
        "--instance",
        metavar="NAME",
        help="the database in the store; default: the only one, or the one that is named default",
    ),
)


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


@store_group.command(epilog="Example: opendata-queue store verify s3://bucket/queue")
@store_options
@prints
def verify(store: str | None, url: str | None, instance: str | None) -> Reply:
    """Check every file, every record and every invariant. Nothing is changed.

    Exits with 4 if the store is damaged or contradicts itself, and with 5 if not everything could be checked.
    """
    from ...offline import verify_store

    with bar("verifying") as update:
        report = asyncio.run(
            verify_store(store_location(store, url), instance, progress=lambda far: update(far.done, far.total))
        )
    error = None
    if report.status.name == "FINDINGS":
        error = CommandError("the store is damaged, or contradicts itself", DAMAGED)
    elif report.incomplete:
        error = CommandError("not everything could be checked", NOT_NOW)
    return Reply(report.as_dict(), *_findings(report), error=error)


def _findings(report: Any) -> Iterator[str]:
    for finding in report.findings:
        where = "".join(
            f" {name} {shown(value)}"
            for name, value in (("queue", finding.queue), ("message", finding.message_id), ("file", finding.file))
            if value is not None
        )
        yield f"{finding.severity.value}  {finding.code}{where}: {finding.text}"
        yield f"    what it means: {finding.meaning}"
        yield f"    what to do: {finding.remedy}"
    yield from (f"not checked: {reason}" for reason in report.incomplete)
    remaining = sum(report.counts.values()) - len(report.findings)
    if remaining:
        yield f"and {remaining:,} more of the same kinds"
    records = counted(sum(report.records.values()), "record")
    verdict = {"CLEAN": "clean", "FINDINGS": "damaged", "INCOMPLETE": "not fully checked"}[report.status.name]
    files, messages = counted(report.files, "file"), counted(report.messages, "message")
    yield f"{verdict}: {files}, {records} and {messages} checked"


@store_group.command(epilog="Example: opendata-queue store repair --delete-damaged /var/lib/app-queue")
@store_options
@click.option("--delete-damaged", is_flag=True, help="give up what is damaged, so that a broker can start")
@prints
def repair(store: str | None, url: str | None, instance: str | None, delete_damaged: bool) -> Reply:
    """List the losses of a damaged journal, and accept them.

    Without --delete-damaged, nothing is changed, and the exit status is 4 if the journal is damaged. Try to restore the
    damaged file first. No broker may run. The original files are kept beside the journal.
    """
    from ...offline.repair import repair as run

    losses = asyncio.run(run(store_location(store, url), instance, delete_damaged=delete_damaged))
    error = None
    if not delete_damaged and not losses.is_sound:
        remedy = "restore its files, or repeat this with --delete-damaged"
        error = CommandError(f"the journal is damaged: {remedy}", DAMAGED)
    return Reply(losses.as_dict(), *_losses(losses), error=error)


def _losses(losses: Any) -> Iterator[str]:
    if losses.is_sound:
        yield "the journal is not damaged, so nothing was changed; store verify checks the other files"
    for path in losses.headers:
        yield f"the header of {path} is damaged; nothing is lost with it"
    if (first := losses.first) is not None:
        yield f"record {first.sequence} at byte {first.offset} of {first.path} is damaged or missing"
        yield f"lost with it: {counted(losses.records, 'complete record')} after it"
        if losses.unread:
            yield f"{counted(losses.unread, 'record')} can't be read, so this list is not complete"
        if losses.uncertain:
            damaged = counted(losses.uncertain, "damaged record")
            yield f"{damaged} could be read in part, so the list may be wrong there"
    for queue, ids in sorted(losses.published.items()):
        yield f"lost from queue {shown(queue)}: {counted(len(ids), 'message')}: {_some(ids)}"
    for queue, ids in sorted(losses.settled.items()):
        yield f"returned to queue {shown(queue)}: {counted(len(ids), 'settled message')}: {_some(ids)}"
    if losses.other:
        yield f"lost besides: {counted(losses.other, 'other change')}, such as deliveries, definitions and results"
    yield from (f"kept as it was: {path}" for path in losses.kept)


def _some(ids: list[int]) -> str:
    remaining = len(ids) - _SHOWN_IDS
    return ", ".join(map(str, ids[:_SHOWN_IDS])) + (
        f" and {remaining:,} more (--json lists all)" if remaining > 0 else ""
    )


@store_group.command(epilog="Example: opendata-queue store stats /var/lib/app-queue --payloads")
@click.option("--payloads", is_flag=True, help="also sum payload bytes by queue; slower")
@store_options
@prints
def stats(store: str | None, url: str | None, instance: str | None, payloads: bool) -> Reply:
    """Count the queues, records and files of a store."""
    from ...offline import stats as count

    with bar("counting") as update:
        report = _with_store(
            store_location(store, url),
            instance,
            "stats",
            lambda opened: count(opened, payloads=payloads, progress=lambda far: update(far.done, far.total)),
        )
    facts = {
        "store": report.location,
        "instance": report.instance,
        "created": moment(report.created_at_ms),
        "format": report.format_version,
        "broker": "none" if report.broker_pid is None else f"pid {report.broker_pid}",
        "messages": report.messages,
        "corrupt records": report.corrupt,
    }
    rows = [
        {
            "queue": name, "ready": queue.ready, "delayed": queue.delayed, "in_flight": queue.in_flight,
            "done": queue.done, "failed": queue.failed, "archived": queue.archived_failed,
            "payload_bytes": number(sum(queue.payload_bytes.values())) if queue.payload_bytes is not None else "",
        }
        for name, queue in sorted(report.queues.items())
    ]  # fmt: skip
    records = [
        {"records": name, "number": counts.records, "bytes": counts.key_bytes + counts.value_bytes}
        for name, counts in sorted(report.records.items())
    ]
    files = [
        {"files": name, "number": counts.files, "bytes": counts.bytes} for name, counts in sorted(report.files.items())
    ]
    if (journal := report.journal) is not None:
        files.append({"files": "journal", "number": journal.segments + journal.spares, "bytes": journal.bytes})
    return Reply(
        with_times(report.as_dict()),
        facts,
        Table(_QUEUES, none="no queues", rare=("payload bytes",), rows=rows),
        Table({"records": "", **_SIZES}, none="no records", rows=records),
        *([Table({"files": "", **_SIZES}, none="", rows=files)] if files else []),
    )


_QUEUES = {
    "queue": "", "ready#": "", "delayed#": "", "in flight#": "", "done#": "", "failed#": "", "archived#": "",
    "payload bytes#": "",
}  # fmt: skip
_SIZES = {"number#": "", "bytes#": ""}


@store_group.command(epilog="Example: opendata-queue store inspect /var/lib/app-queue --message 1234")
@store_options
@click.option("--message", "message", type=MESSAGE_ID, help="everything about the message with this id")
@click.option(
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queues,
    help="everything about a queue; with --kind, its records of that kind",
)
@click.option("--key", metavar="HEX", help="the record with this key")
@click.option("--kind", metavar="KIND", help="records of this kind, such as active or metadata")
@click.option("--prefix", metavar="HEX", default="", help="records whose keys begin with these bytes")
@limit_option("how many records at most", 100, low=1)
@prints
def inspect(
    store: str | None,
    url: str | None,
    instance: str | None,
    message: int | None,
    queue: str | None,
    key: str | None,
    kind: str | None,
    prefix: str,
    limit: int,
) -> Reply:
    """Show a message, a queue, or stored records.

    Records are shown in the order of their keys. With --json, each is a separate document on its line.
    """
    from ...offline import inspect, scan

    if sum(item is not None for item in (message, key, kind or queue)) > 1:
        raise click.UsageError("choose one of: --message, --key, or --queue with --kind")
    item: bytes | int | str | None = message
    if key is not None:
        item = _hexadecimal(key, "--key")
        if not item:
            raise click.UsageError("--key is empty: give a whole key, or use --prefix")
    elif queue is not None and kind is None:
        item = queue
    start = _hexadecimal(prefix, "--prefix")

    async def records(opened: Any) -> list[Any]:
        query: Any = {"kind": kind, "queue": queue, "prefix": start, "limit": limit}
        return [record async for record in scan(opened, **query)]

    location = store_location(store, url)
    try:
        if item is not None:
            document = _with_store(location, instance, "inspect", lambda opened: inspect(opened, item)).as_dict()
            return Reply(document, *_lines(document))
        rows = _with_store(location, instance, "inspect", records)
    except RequestError as exc:
        if type(exc) is RequestError:
            raise click.UsageError(exc.text) from exc
        raise
    return Reply(JsonLines(record.as_dict() for record in rows), _RECORDS.of(rows))


def _hexadecimal(text: str, option: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as exc:
        raise click.UsageError(f"{option} {text!r} is not hexadecimal") from exc


def _with_store(location: str, instance: str | None, who: str, read: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Open a store, and return what a function reads in it."""
    from ...offline import open_store

    async def run() -> Any:
        async with await open_store(location, instance, who=who) as opened:
            return await read(opened)

    return asyncio.run(run())


_RECORDS = Table(
    {
        "key": "",
        "kind": "",
        "of": lambda record: _flat(record.of),
        "bytes#": "size",
        "value": lambda record: shown(record.problem or record.value, _CELL),
    },
    none="no records",
)


def _flat(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _lines(document: dict[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, list):
            yield f"{name}: {'' if value else 'none'}"
            yield from (f"  {_flat(element) if isinstance(element, dict) else element}" for element in value)
        elif isinstance(value, dict):
            yield f"{name}:"
            yield from (f"  {inner}: {inside}" for inner, inside in value.items())
        else:
            yield f"{name}: {'' if value is None else value}"
