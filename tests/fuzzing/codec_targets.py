"""Targets without a process around them: records, journal, batches, filters, URLs, configuration, users, arguments."""

from __future__ import annotations

import json
import struct
import tempfile
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from kombu_opendata.broker.access.users_file import parse as parse_users
from kombu_opendata.broker.model import argument_checks
from kombu_opendata.configuration.options import BrokerOptions, public_specs
from kombu_opendata.configuration.sources import configuration
from kombu_opendata.errors import (
    AccessRefused,
    CorruptRecord,
    InvalidConfiguration,
    InvalidURL,
    InvalidUsersFile,
    NewerFormat,
    RequestError,
    SelectorError,
    UnsupportedFormat,
)
from kombu_opendata.masking import masked
from kombu_opendata.offline.checks.batch_objects import verify_object
from kombu_opendata.protocol.queue_arguments import KNOWN
from kombu_opendata.selectors import compile_selector
from kombu_opendata.selectors.language import KEYWORDS
from kombu_opendata.staging import batch_format as fmt
from kombu_opendata.staging.batch_block import decode_block
from kombu_opendata.staging.batch_reader import read_inline
from kombu_opendata.staging.compression import Compressor
from kombu_opendata.staging.job import BatchInfo
from kombu_opendata.storage.commit import journal_format
from kombu_opendata.storage.commit.journal import Journal
from kombu_opendata.storage.effects import codec
from kombu_opendata.storage.records import decode_any, keys
from kombu_opendata.url import parse as parse_url
from kombu_opendata.url import read_hosts

from .target import Target

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

#: more nesting, and more digits, than Python's parsers take
_NESTED, _DIGITS = "[" * 3000, "9" * 5000


def vectors(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


class _InFolder(Target):
    """A target with a folder of its own."""

    def open(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="odq-fuzz-")
        self.folder = Path(self._temporary.name)

    def close(self) -> None:
        self._temporary.cleanup()


# ---------------------------------------------------------------------- storage
_ONE_RANGE_BYTES = 40


class Records(Target):
    """A key, behind its length, and its value."""

    name = "records"

    def seeds(self) -> list[bytes]:
        found = [each for each in vectors("rfc0001.json") if "key_hex" in each and "value_hex" in each]
        pairs = [(bytes.fromhex(each["key_hex"]), bytes.fromhex(each["value_hex"])) for each in found]
        return [bytes((len(key),)) + key + value for key, value in pairs if len(key) < 256 and len(value) < 3000]

    def run(self, data: bytes) -> None:
        if not data:
            return
        key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
        with suppress(CorruptRecord, UnsupportedFormat):
            kind = keys.parse(key).kind
            # a range of 12 bytes in the history's log stands for up to a million messages: one is enough
            if kind is not keys.RecordKind.HISTORY_LOG or len(value) <= _ONE_RANGE_BYTES:
                decode_any(key, value)


class JournalFiles(_InFolder):
    """Records of a segment: for each a byte of flags, the length of the payload, and the payload.

    The flags damage it, as a mutation of bytes hardly hits a checksum: 1 changes the checksum, 2 the sequence number, 4
    cuts the record off, and 8 adds zeros. With 16 in the first byte, the rest is a segment as it is.
    """

    name = "journal"
    _HEAD = struct.Struct("<BH")

    def seeds(self) -> list[bytes]:
        commits = [codec.encode([form]) for form in map(_sample_effect, codec.Stored.__args__) if form is not None]
        records = [self._HEAD.pack(0, len(payload)) + payload for payload in commits]
        header = journal_format.encode_header(1, 1)
        flagged = [self._HEAD.pack(flags, 3) + b"\x91\x90\xc0" + records[0] for flags in (1, 2, 4, 8)]
        return [*records, b"".join(records[:3]), *flagged, b"\x10" + header + bytes(40)]

    def run(self, data: bytes) -> None:
        segment = data[1:] if data[:1] >= b"\x10" else self._segment(data)
        folder = self.folder / "journal"
        folder.mkdir(exist_ok=True)
        path = folder / journal_format.file_name(1)
        path.write_bytes(segment)
        journal = Journal(folder, segment_bytes=4096, sync=False)
        try:
            with suppress(CorruptRecord, NewerFormat):
                for _sequence, payload in journal.replay(data[0] & 1 if data else 0, codec.unsynced):
                    codec.decode(payload)
        finally:
            journal.close()
            path.unlink(missing_ok=True)

    def _segment(self, data: bytes) -> bytes:
        parts, at, sequence = [journal_format.encode_header(1, 1)], 0, 1
        while at + self._HEAD.size <= len(data):
            flags, length = self._HEAD.unpack_from(data, at)
            payload = data[at + self._HEAD.size :][:length]
            at += self._HEAD.size + length
            stated = sequence + (flags >> 1 & 1)
            crc = journal_format.checksum(stated, payload) ^ (flags & 1)
            record = journal_format.RECORD.pack(len(payload), crc, stated) + payload
            parts.append(record[: len(record) // 2] if flags & 4 else record + bytes(flags & 8))
            sequence += 1
        return b"".join(parts)


def _sample_effect(form: type[msgspec.Struct]) -> Any:
    """An effect with some value in each field; None if that needs more than its types say."""
    with suppress(Exception):
        return msgspec.convert([form.__struct_config__.tag, *map(_sample, msgspec.structs.fields(form))], form)
    return None


def _sample(field: msgspec.structs.FieldInfo) -> Any:
    kind = str(field.type)
    for part, value in (("int", 1), ("bytes", b"s" * 16), ("str", "q"), ("list", []), ("dict", {}), ("tuple", [])):
        if part in kind.split("[")[0]:
            return value
    return None


class Batches(Target):
    """An object of a batch.

    The first byte says how: 0 and 1 an object as it is; 2 and 3 the columns of a block, behind their length, and the
    bytes of its envelopes, around which the checksums are right; of these an odd number means format 1.
    """

    name = "batches"
    _JOB, _TOKEN = "job", "0" * 16

    def seeds(self) -> list[bytes]:
        found = []
        for version in (1, 2):
            data = bytes.fromhex(vectors(f"batch_v{version}.json")["object_hex"])
            found.append(b"\0" + data)
            start = fmt.directory_start(data, len(data), "p")
            (segment,) = fmt.decode_tail(data[start:], start, "p", version).segments
            index = data[segment.index_offset : start]
            (encoded,) = fmt.split_index(index, segment, "p", version, 1 << 20)
            payload = data[fmt.HEADER.size : segment.index_offset]
            found.append(bytes((4 - version,)) + len(encoded).to_bytes(2, "little") + encoded + payload)
        return found

    def run(self, data: bytes) -> None:
        mode = data[0] % 4 if data else 0
        found = data[1:] if mode < 2 else self._object(data[1:], fmt.PLAIN_VERSION if mode % 2 else fmt.VERSION)
        uri = fmt.batch_uri(fmt.batch_path(self._JOB, 0, 0, self._TOKEN))
        checksum = int.from_bytes(found[-8:-4], "little")
        for rows in (1, len(data) % 7):
            with suppress(CorruptRecord, NewerFormat, RequestError):
                read_inline(BatchInfo(uri, rows, len(found), checksum, data=found), "default", self._JOB, 1 << 20)
        with suppress(CorruptRecord, NewerFormat):
            list(verify_object(_Bytes(found), "p", len(found), checksum))
        with suppress(CorruptRecord):
            decode_block(data[1:], "p", 1 << 20, 1 << 20)

    def _object(self, data: bytes, version: int) -> bytes:
        size = int.from_bytes(data[:2], "little")
        columns, payload = data[2 : 2 + size], data[2 + size :]
        index = fmt.SIZE.pack(len(columns)) + columns
        if version == fmt.VERSION:
            index = Compressor().frame(index)
        head = fmt.HEADER.pack(fmt.MAGIC, version, 0)
        rows = 1
        with suppress(CorruptRecord):
            rows = decode_block(columns, "p", 1 << 20, 1 << 20).rows
        segment = fmt.SegmentEntry(len(head), len(payload), len(index), crc32(index), rows, 1)
        offset = segment.index_offset + len(index)
        return head + payload + index + fmt.encode_tail([segment], "default", self._JOB, 0, 0, offset)[0]


class _Bytes:
    """A source of one object."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, _path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return [self._data[offset : offset + length] for offset, length in ranges]


# ---------------------------------------------------------------------- texts
class Selectors(Target):
    name = "selectors"
    tokens = (*sorted(KEYWORDS), "task", "'a%'", "<>", "<=", "(", ")", "5.0", "1e9", '"x y"', "''")
    most_bytes = 17_000
    _HEADERS: tuple[dict[str, str], ...] = (
        {},
        {"task": "a.b", "priority": "5", "": "", "x y": "true"},
        {"a": "9" * 50, "b": "nan", "c": "é"},
    )

    def seeds(self) -> list[bytes]:
        texts = (
            "task = 'a'", "priority >= 5 AND NOT a IS NULL", "a LIKE 'x!%%' ESCAPE '!'", "a IN ('b', 'c') OR b <> 1",
            "a BETWEEN 1 AND 2", "-a * 2 + 3 / 4 - 1 > 0", "TOPIC(routing_key, 'a.#')", "NOT (TRUE OR FALSE)",
        )  # fmt: skip
        return [text.encode() for text in texts]

    def run(self, data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        try:
            selector = compile_selector(text)
        except SelectorError:
            return
        assert selector.steps >= 0
        for headers in self._HEADERS:
            value = selector.explain(headers).value
            assert selector.matches(headers) is (value is True), text
        assert compile_selector(str(selector.text)).names == selector.names


class URLs(Target):
    name = "urls"
    tokens = ("opendata://", "opendatas://", "opendata+memory://", "s3://", "%2F", "[::1]", ":5677", "@", ",", ";")
    most_bytes = 512

    def seeds(self) -> list[bytes]:
        urls = (
            "opendata:///srv/q", "opendata://u:p%40@h:1/i", "opendatas://h,i:9/x", "opendata://%2Frun%2Fq.sock/i",
            "opendata+memory://x", "opendata://[::1]:5677", "s3://b/c?key=v", "opendata://a:1@h;opendata://b:2@i",
        )  # fmt: skip
        return [url.encode() for url in urls]

    def run(self, data: bytes) -> None:
        url = data.decode("utf-8", "surrogateescape")
        assert isinstance(masked(url), str)
        with suppress(ValueError):
            read_hosts(url)
        try:
            address = parse_url(url)
        except InvalidURL:
            return
        assert parse_url(address.as_uri(include_secret=True)) == address, url
        if address.secret:
            shown = replace(address, secret="x")
            assert (f"{address}", f"{address!r}") == (f"{shown}", f"{shown!r}"), url


class ConfigurationFiles(_InFolder):
    """A configuration file; after a zero byte, one variable for each line ``KEY=TEXT``."""

    name = "configuration"
    most_bytes = 8192
    tokens = (*(f"{spec.key} = " for spec in public_specs()), '"tcp:127.0.0.1:0"', '"1h30m"', '"20G"', "[", "]", '"""')

    def seeds(self) -> list[bytes]:
        return [
            b'store = "memory://x"\nlisten = ["tcp:127.0.0.1:0", "unix:/a"]\n',
            b'heartbeat = "1h30m"\nretention-bytes = "20G"\nlog-retention = "forever"\nno-sync = true\n',
            b"max-queues = 0x10\nmetrics = 9464\n",
            f"a = {_NESTED}".encode(),
            f"max-queues = {_DIGITS}".encode(),
            b'\0store=s3://a/b\nmemory-limit=40%\nsocket-mode=0600\nhistory-days=1e2\nlog-level=debug\n',
        ]  # fmt: skip

    def run(self, data: bytes) -> None:
        given: dict[str, Any] = {"store": "memory://x", "listen": ("tcp:127.0.0.1:0",)}
        environment: dict[str, str] = {}
        file, _, lines = data.partition(b"\0")
        variables = {spec.key: spec.variable for spec in public_specs()}
        for line in lines.decode("utf-8", "surrogateescape").splitlines():
            key, _, text = line.partition("=")
            environment[variables.get(key, key)] = text
        path = self.folder / "broker.toml"
        path.write_bytes(file)
        environment.pop("OPENDATA_QUEUE_CONFIG", None)
        found = configuration(given, environment, path)
        assert all(found.errors)
        with suppress(InvalidConfiguration):
            options: BrokerOptions = found.options()
            assert list(options.described()) is not None
            for spec in public_specs():
                spec.shown(getattr(options, spec.field))


class Users(Target):
    name = "users"
    most_bytes = 8192
    tokens = (
        "[users.", "[instances.", "secret = ", "certificates = [", "roles = [", '"admin"', "limits = {",
        "instances = {", "connections = ", "configure = ", "write = ", "read = ", '".*"', "'''",
        "$argon2id$v=19$m=65536,t=3,p=4$",
    )  # fmt: skip
    _HASH = "$argon2id$v=19$m=65536,t=3,p=4$MTIzNDU2Nzg$LZ0+KkSxNTJzqOCiPfTr0ybrBwPFsHNcdHTJKhtS5vo"

    def seeds(self) -> list[bytes]:
        table = f'[users.a]\nsecret = "{self._HASH}"\nroles = ["monitor"]\n'
        rights = '[users.a.instances.default]\nconfigure = "^a|b.*$"\nwrite = ".*"\nread = "[a-z]{1,9}"\n'
        limits = "[users.a.limits]\nconnections = 5\n[instances.default.limits]\nqueues = 9\n"
        return [
            (table + rights).encode(),
            (table + limits).encode(),
            b'[users.b]\ncertificates = ["b"]\n',
            b"a:$argon2\n",
            f"a = {_NESTED}".encode(),
            f"a = {_DIGITS}".encode(),
        ]

    def run(self, data: bytes) -> None:
        try:
            parsed = parse_users(Path("/etc/users.toml"), data, {})
        except InvalidUsersFile:
            return
        for user in parsed.users.values():
            assert repr(user.table)
            for instance, name in product(("default", "x"), ("a", "q" * 255, "ü\0", "")):
                with suppress(AccessRefused):
                    user.rights(instance).check("write", "queue", name)
                with suppress(AccessRefused):
                    user.rights(instance).check_publish("", name)
        assert parse_users(Path("/etc/users.toml"), data, parsed.users).users == parsed.users


class Arguments(Target):
    """Arguments of a queue, as JSON."""

    name = "arguments"
    tokens = (*(f'"{argument.name}":' for argument in KNOWN), "null", "true", "-1", "1e400", "[]", "{}")

    def seeds(self) -> list[bytes]:
        values: list[Any] = [0, 1, 60, "drop-head", "classic", True, "a = 1"]
        texts = [json.dumps({argument.name: value}) for argument in KNOWN for value in values]
        return [text.encode() for text in [*texts, json.dumps({argument.name: 1 for argument in KNOWN})]]

    def run(self, data: bytes) -> None:
        try:
            given = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        with suppress(RequestError):
            parsed = argument_checks.parse("q", given)
            assert parsed == argument_checks.parse("q", argument_checks.with_effect(given, stored=True)), data
        argument_checks.parse_stored("q", given)
        assert all(argument_checks.unknown("queue", "q", given))
        with suppress(RequestError):
            argument_checks.refuse_unknown("q", given)
