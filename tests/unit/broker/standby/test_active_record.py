"""The active record is JSON that may grow; a newer format, and what is no record, are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kombu_opendata.broker.standby.active_record import (
    ActiveRecord,
    TakeOverClaim,
    decode,
    encode,
    has_ended,
    own_process,
)
from kombu_opendata.errors import CorruptRecord, NewerFormat


def test_it_comes_back_as_it_was() -> None:
    record = ActiveRecord(
        id="a", addresses=["h:1"], key="00", instances=["default"], claim=TakeOverClaim(id="b", forced=True)
    )
    assert decode(encode(record)) == record


def test_unknown_fields_are_ignored() -> None:
    assert decode(b'{"format": 1, "id": "a", "colour": "red"}') == ActiveRecord(id="a")


@pytest.mark.parametrize("field", ["format", "store_format"])
def test_a_newer_format_is_refused(field: str) -> None:
    data = json.dumps({"id": ["of another type by then"], "version": "9.1", field: 99}).encode()
    with pytest.raises(NewerFormat, match=f"9.1, whose {field} is 99") as caught:
        decode(data)
    assert caught.value.version == 99


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 1}', b'{"id": 7}', b"\xff"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match=r"broker\.active in the store does not decode"):
        decode(data)


def test_a_process_has_ended_when_it_is_gone_or_a_zombie() -> None:
    program = "from kombu_opendata.broker.standby.active_record import own_process; print(own_process())"
    child = subprocess.Popen([sys.executable, "-c", f"{program}; input()"], stdin=-1, stdout=-1, text=True)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert not has_ended(name)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(name)
    child.communicate()
    assert has_ended(name)


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    place, pid, started = own_process().rsplit("/", 2)
    assert not has_ended(f"{place}/{pid}/{started}")
    assert has_ended(f"{place}/{pid}/{int(started) + 1}")


@pytest.mark.parametrize("name", ["", "nonsense", "a/b/c/d", "other-boot/4026531836/1/1"])
def test_of_other_hosts_nothing_is_known(name: str) -> None:
    assert not has_ended(name)
