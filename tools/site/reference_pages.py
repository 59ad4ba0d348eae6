"""A hook of mkdocs: reference pages from the code's one definition of each thing.

They are the broker's options and metrics, the arguments of queues, the permissions of operations, the messages of the
wire protocol, the formats of records, the effects of the journal, the findings of ``store verify``, the
checks of the contract, and the injected faults.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from msgspec import Struct, structs

from kombu_opendata.broker.metrics import metric_catalogue
from kombu_opendata.broker.standby.active_record import ActiveRecord
from kombu_opendata.configuration.options import Spec, public_specs
from kombu_opendata.offline.findings import CODES
from kombu_opendata.protocol.messages import OPERATIONS as OPERATIONS_BY_MESSAGE
from kombu_opendata.protocol.messages import BrokerMessage, ClientMessage
from kombu_opendata.protocol.queue_arguments import KNOWN
from kombu_opendata.spark.read.tables import BOUNDS_OF, COSTLY, TABLES
from kombu_opendata.staging.batch_block import IndexBlock
from kombu_opendata.storage import records
from kombu_opendata.storage.effects import Effect
from kombu_opendata.storage.effects.codec import Stored
from kombu_opendata.storage.records.kinds import U64, RecordKind

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kombu_opendata"
TESTS = ROOT / "tests"

OPTIONS = """# The broker's options

Each option of `opendata-queue broker` can be given on the command line, in a file or in the environment;
[configuration](../configuration.md) says how. [Settings](../settings.md#the-brokers-options) explains them together
with those of Celery and of clients. This page is made from their definition in the code.

"""
METRICS = """# All metrics

A broker serves them with `--metrics`; [monitoring](../monitoring.md) explains the endpoint, labels and what to watch.
This page is made from their definition in the code.
"""
OPERATIONS = """# Permissions of all operations

An operation is refused before it changes anything, and without revealing whether the name exists. "Or" is a role that
replaces the right. [Permissions](../permissions.md) explains rights, roles and names. This page is made from the
definitions of the operations.

"""
FINDINGS = """# All findings

[Inspecting and verifying a store](../verify.md) explains the severities. The report has the same meanings and remedies.
This page is made from the definitions of the findings.

| code | severity | what it means | what to do |
|---|---|---|---|
"""
MESSAGES = """# All messages

Each message of the [wire protocol](../rfcs/0002-wire-protocol.md) has a unique number, whichever side sends it. The
number is the first element of its array; its fields follow in this order. Fields with a `?` may be left out at the end.
This page is made from the definitions of the messages.
"""

RECORDS = """# All records

The records of a store, from the modules of `kombu_opendata/storage/records/`. Types and rules are in
[RFC 0001](../rfcs/0001-records.md).

## Keys

`[…]` may be missing. Integers are big endian.

| key | record | from |
|---|---|---|
"""
ACTIVE_RECORD = """
## The active record

JSON, beside the databases of a store ([RFC 0009](../rfcs/0009-standby.md)).

| field | type | meaning |
|---|---|---|
"""
INDEX_BLOCK = """
## A block of a batch's index

A msgpack array of these columns of some rows, in this order ([RFC 0008](../rfcs/0008-staged-batches.md)).
A column that is not a list has the same value in each row.

| column | type | meaning |
|---|---|---|
"""
#: the fields of keys as pages name them; the default is that of the reader
KEY_FIELDS = {
    "name": "queue TB", "bucket": "bucket u64", "id": "id u64", "queue": "queue TB", "routing_key": "routing key TB",
    "digest": "digest, 8 bytes", "session": "session, 16 bytes", "chunk": "number u32", "partition": "number u32",
    "result": "name TB", "expires_at_ms": "time u64", "chord": "group TB", "header_index": "index u32",
    "hash": "hash, 16 bytes", "owner": "key of a result or part TB",
}  # fmt: skip
KEY_NAMES = {
    RecordKind.EXCHANGE: "exchange TB", RecordKind.BINDING: "exchange TB", RecordKind.STAGED_JOB: "job id TB",
    RecordKind.STAGED_EXPIRY: "job id TB",
}  # fmt: skip
EFFECTS = """# All effects

The changes in a commit of the [journal](../rfcs/0003-journal.md), from `kombu_opendata/storage/effects/`. An effect is
an array of its number and its fields, in this order. Fields with a `?` may be missing at the end: they are empty, or an
older version wrote the journal. Times are ms since the epoch. `pairs` is a flat list id, bucket, id, bucket, …, so that
recovery loads only these buckets.

| number | effect | meaning | fields |
|---|---|---|---|
"""

ARGUMENTS = """# All queue arguments

[Queue arguments](../queue-arguments.md) explains how they are given and altered. This page is made from their
definition in `kombu_opendata/protocol/queue_arguments.py`.

| argument | type | unit | default | meaning | unlike RabbitMQ | a new value |
|---|---|---|---|---|---|---|
"""

SPARK = """# Options and tables for Spark

[Spark](../spark.md) explains how they are used. This page is made from the modules that read and write.
"""

TABLES_OF_STORES = """
| table | columns | bounds |
|---|---|---|
"""

VALUES = """
## Values

`example` is SQL. The other columns are a task's arguments by serializer: "same" is the same as with pickle, "—" is
refused before anything is sent.

"""
PEER_CALLS = """# Calls of pgmq, pgqrs and Outpost

Calls of these queues, and of [our client](../client-api.md). The tests run each in a queue `q` with waiting messages
`ids`, of which `message` was read.

"""

MECHANISMS = """# Mechanisms

The modules that explain a mechanism at their head: invariants, states, and why a simpler way fails. The
[architecture](../ARCHITECTURE.md) is the map, [formats and protocols](../rfcs/README.md) are specified apart.
"""
#: a module's docstring of so many words explains a mechanism
EXPLAINED_WORDS = 100


def options_page() -> str:
    return OPTIONS + "\n".join(_option(spec) for spec in public_specs())


def _option(spec: Spec) -> str:
    kind = spec.kind
    values = " ".join(text for text in (f"`{kind.metavar}`" if kind.metavar else "no value", kind.allowed) if text)
    if spec.repeated:
        values += "; may be given several times"
    default = "must be given" if spec.required else spec.described(spec.default) or "none"
    if spec.default is False:
        default = "off"
    rows = {
        "Command line": f"`{spec.flag}`",
        "File": f"`{spec.key}`",
        "Environment": f"`{spec.variable}`",
        "Value": values,
        "Default": default if spec.required or default in ("none", "off") else f"`{default}`",
    }
    table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())
    return f"## `{spec.flag}` {{ #{spec.key} }}\n\n{_sentence(spec.help)}\n\n| | |\n|---|---|\n{table}\n"


def metrics_page() -> str:
    """Return the metrics in groups that share their first labels."""
    groups = (
        (
            "Queues",
            "`broker_instance`, `queue`",
            (
                *metric_catalogue.QUEUE_GAUGES,
                *metric_catalogue.QUEUE_AGES,
                *metric_catalogue.PARTITION_GAUGES,
                *metric_catalogue.QUEUE_COUNTERS.values(),
            ),
        ),
        ("Instances", "`broker_instance`", metric_catalogue.INSTANCE),
        ("Tasks", "`broker_instance`", metric_catalogue.TASKS),
        ("The broker", "none", metric_catalogue.BROKER),
    )
    parts = [METRICS]
    for title, labels, metrics in groups:
        parts.append(
            f"\n## {title}\n\nLabels of all: {labels}.\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        )
        for metric in metrics:
            more = ", ".join(f"`{label}`" for label in metric.labels if f"`{label}`" not in labels)
            parts.append(
                f"| `{metric_catalogue.PREFIX}{metric.name}` | {metric.kind} | {more} | {_cell(metric.help)} |\n"
            )
    return "".join(parts)


def operations_page() -> str:
    """Return operations with the same permission in one row."""
    titles: dict[str, list[str]] = {}
    for message in sorted(OPERATIONS_BY_MESSAGE, key=_number):
        titles.setdefault(message.operation.permission.text, []).append(message.operation.title)
    rows = [f"| {'; '.join(operations)} | {text} |" for text, operations in titles.items()]
    return OPERATIONS + "| operation | needs |\n|---|---|\n" + "\n".join(rows) + "\n"


def findings_page() -> str:
    rows = (f"| `{code}` | {kind.severity.value} | {kind.meaning} | {kind.remedy} |\n" for code, kind in CODES.items())
    return FINDINGS + "".join(rows)


def messages_page() -> str:
    parts = [MESSAGES]
    for side, union in (("Messages of clients", ClientMessage), ("Messages of the broker", BrokerMessage)):
        parts.append(f"\n## {side}\n\n| number | message | meaning | fields |\n|---|---|---|---|\n")
        for message in sorted(get_args(union), key=_number):
            meaning = (inspect.getdoc(message) or "").partition("\n\n")[0].replace("\n", " ")
            if message in OPERATIONS_BY_MESSAGE and message.operation.reply and "Reply:" not in meaning:
                meaning += f" Reply: {message.operation.reply.__name__}."
            fields = ", ".join(field.name + ("" if field.required else "?") for field in structs.fields(message))
            parts.append(f"| {_number(message)} | `{message.__name__}` | {docstrings(meaning)} | {fields} |\n")
    return "".join(parts)


def records_page() -> str:
    """Return the docstring of each module of records that has a layout."""
    parts = [RECORDS, *(_key_row(kind) for kind in sorted(RecordKind, key=lambda kind: kind.prefix))]
    for module in pkgutil.iter_modules(records.__path__):
        text = inspect.getdoc(importlib.import_module(f"{records.__name__}.{module.name}")) or ""
        if module.name == "types" or "defined here" in text or "Source" in text:
            title, _, rest = text.partition("\n")
            parts.append(f"\n## {title.rstrip('.')}\n\n{_markdown(rest.strip())}\n")
    parts += [ACTIVE_RECORD, *_fields(ActiveRecord), INDEX_BLOCK, *_fields(IndexBlock)]
    return _plain("".join(parts))


def _fields(struct: type[Struct]) -> Iterator[str]:
    """Return a row for each field: its name, its type, and the text of the class's docstring."""
    texts = re.findall(r"(?m)^ {4}(\w+(?:, \w+)*): (.+(?:\n {8}.+)*)", inspect.getdoc(struct) or "")
    meanings = {name: " ".join(text.split()) for names, text in texts for name in names.split(", ")}
    for field in structs.fields(struct):
        kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        yield f"| `{field.name}` | {_cell(kind.rpartition('.')[2])} | {meanings.get(field.name, '')} |\n"


def _key_row(kind: RecordKind) -> str:
    fields = []
    for name, read, _writers in kind.fields:
        if name == "numbers":
            layouts = read.args[0] if isinstance(read, partial) else {"id >> 8": U64}
            fields += [f"<{number} u{8 * layout.size}>" for number, layout in layouts.items()]
        else:
            text = KEY_NAMES.get(kind, KEY_FIELDS[name]) if name == "name" else KEY_FIELDS[name]
            fields.append(f"[<{text}>]" if name in ("bucket", "digest") else f"<{text}>")
    prefix = kind.prefix.hex(" ")
    if kind is RecordKind.METADATA:
        prefix = '01 01 "opendata-queue/messages/metadata" 00'
    source = "OpenData-Log" if kind is RecordKind.SEQ_BLOCK else "RFC" if kind.prefix[1] < 7 else "ours"
    return f"| `{' '.join([prefix, *fields])}` | {kind.value} | {source} |\n"


def effects_page() -> str:
    rows = []
    for longest in sorted(get_args(Stored), key=_number):
        forms = [
            form for form in longest.__mro__ if getattr(form, "__struct_config__", None) and issubclass(form, Effect)
        ]
        own = [form for form in forms if form.__struct_config__.tag == longest.__struct_config__.tag]
        meaning = " ".join((inspect.getdoc(form) or "").replace("\n", " ") for form in reversed(own) if form.__doc__)
        required = {field.name for field in structs.fields(own[-1]) if field.required}
        fields = ", ".join(name if name in required else f"{name}?" for name in longest.__struct_fields__)
        rows.append(f"| {_number(longest)} | `{own[-1].__name__}` | {docstrings(meaning)} | {fields} |\n")
    return EFFECTS + "".join(rows)


def arguments_page() -> str:
    rows = []
    for a in KNOWN:
        altered = "refused" if a.cannot_alter else a.altered
        rows.append(f"| `{a.name}` | {a.allowed} | {a.unit} | {a.default} | {a.meaning} | {a.differs} | {altered} |\n")
    return ARGUMENTS + "".join(rows).replace("](", "](../")


def spark_page() -> str:
    """Return the tables, and the docstrings of the modules that read and write, without an import of PySpark."""
    parts = [SPARK]
    for path in ("spark/read/tables.py", "spark/read/stream_reader.py", "spark/write/write_options.py"):
        text = ast.get_docstring(ast.parse((PACKAGE / path).read_text())) or ""
        title, _, rest = text.partition("\n")
        parts.append(f"\n## {title.rstrip('.')}\n\n{_markdown(rest.strip())}\n")
    parts.insert(2, TABLES_OF_STORES + "".join(map(_table_row, TABLES)))
    return _plain("".join(parts)) + VALUES + (TESTS / "spark" / "values.md").read_text()


def _table_row(table: str) -> str:
    costly = COSTLY.get(table, ())
    columns = ", ".join(f"{name}{'*' if name in costly else ''} {kind}" for name, kind in TABLES[table].items())
    bounds = ", ".join(f"`{bound}`" for bound in BOUNDS_OF[table])
    return f"| `{table}` | {columns} | {bounds} |\n"


def peer_calls_page() -> str:
    return PEER_CALLS + (TESTS / "integration" / "queue_client" / "peer_calls.md").read_text()


def mechanisms_page() -> str:
    """Return the long docstrings of modules, except of those that have a page of their own."""
    parts = [MECHANISMS]
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if len(text.split()) >= EXPLAINED_WORDS and not name.startswith(("storage/records/", "spark/", "cli/")):
            title, _, rest = text.partition("\n")
            parts.append(f"\n## {title.rstrip('.')}\n\n`{name}`\n\n{_markdown(rest.strip())}\n")
    return _plain("".join(parts))


def docstrings(text: str) -> str:
    """Return a sentence of a docstring for a cell: names of classes and literals as code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return text.replace("|", "\\|")


def contract_checks_page() -> str:
    _find_tools()
    from tools.site.contract_page import checks_page

    return str(checks_page())


def _find_tools() -> None:
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))


def _markdown(text: str) -> str:
    _find_tools()
    from tools.site.docstrings import markdown

    return str(markdown(text))


def _plain(text: str) -> str:
    """Return Markdown with roles and literals as code."""
    return re.sub(r":\w+:`[~.]?([^`]+)`", r"`\1`", text).replace("``", "`")


def _number(message: Any) -> int:
    return int(message.__struct_config__.tag)


def _cell(text: str) -> str:
    """A cell of a table; the pipes of code need no escape."""
    return text if "`" in text else text.replace("|", "\\|")


def _sentence(text: str) -> str:
    text = re.sub(r"(?<!\S)(--?[a-z][\w-]+|/[a-z]+|[a-z0-9]+:[/A-Z…][^\s,]*)", r"`\1`", text)
    return f"{text[:1].upper()}{text[1:]}."


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    files.append(File.generated(config, "reference/broker-options.md", content=options_page()))
    files.append(File.generated(config, "reference/metrics.md", content=metrics_page()))
    files.append(File.generated(config, "reference/operations.md", content=operations_page()))
    files.append(File.generated(config, "reference/findings.md", content=findings_page()))
    files.append(File.generated(config, "reference/messages.md", content=messages_page()))
    files.append(File.generated(config, "reference/records.md", content=records_page()))
    files.append(File.generated(config, "reference/effects.md", content=effects_page()))
    files.append(File.generated(config, "reference/queue-arguments.md", content=arguments_page()))
    files.append(File.generated(config, "reference/spark-tables.md", content=spark_page()))
    files.append(File.generated(config, "reference/peer-calls.md", content=peer_calls_page()))
    files.append(File.generated(config, "reference/mechanisms.md", content=mechanisms_page()))
    files.append(File.generated(config, "reference/contract-checks.md", content=contract_checks_page()))
    return files
