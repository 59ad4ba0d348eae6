"""Bad input: well-formed messages that no client of this package would send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import frame

from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from ...support.raw import RawClient


def test_many_questions_with_large_answers_at_once(raw: RawClient, broker: EmbeddedBroker) -> None:
    """A few kilobytes of them: the broker reads few results at a time, and answers each request once."""
    raw.hello()
    raw.call(m.StoreResult(0, b"large", 1, b"x" * 4_000_000, 0))
    count = 150
    raw.send_bytes(b"".join(frame(m.GetResults(1000 + number, [b"large"])) for number in range(count)))
    raw.send_bytes(frame(m.DeclareQueue(5000, "behind", False, True, False, {}, False)))
    sizes = {5000: 0} | {1000 + number: 4_000_000 for number in range(count)}
    while sizes:
        answer: Any = raw.receive()
        size = sizes.pop(answer.rid)
        assert len(answer.values[0]) == size if size else answer.queue == "behind"
    peak = next(line for line in Path(f"/proc/{broker.pid()}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 500 << 10  # KiB


def test_a_question_that_could_not_be_answered(raw: RawClient) -> None:
    raw.hello()
    raw.send_array(19, 0)  # GetStatus
    failed = raw.last_word()
    assert failed is not None
    assert "without a request number" in failed.text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (m.Consume(0, 1, "t" * 256, "q", False, False, {}), "the consumer tag is over 255 bytes"),
        (m.Maintain(0, ["collect"], float("nan")), "again in nan s: give a number of seconds"),
        (m.Maintain(0, ["collect"], float("-inf")), "again in -inf s"),
    ],
)
def test_a_call_that_no_client_of_ours_would_make(raw: RawClient, message: Any, text: str) -> None:
    raw.hello()
    raw.declare("q")
    failed = raw.call(message)
    assert isinstance(failed, m.Failed)
    assert text in failed.text


def test_envelopes_that_are_none_are_dead_lettered(raw: RawClient) -> None:
    """Whatever bytes a client publishes, a dead letter of them arrives."""
    encode = msgspec.msgpack.encode
    hostile = [
        b"", b"\xc1", b"\x91" * 5000 + b"\xc0", encode(1), encode([]), encode([b"b", 1, 2, [], [], 1, 2]),
        encode([b"b", "t", "e", {"x-death": [{"queue": [], "reason": {}}, 5, None]}, {}, "x", "k"]),
        encode([b"b", "t", "e", {"x-death": [{"queue": "src", "count": float("nan")}]}, {"expiration": {}}, "x", "k"]),
        encode([b"b", "t", "e", {1: 2, None: 3}, {}, "x" * 70_000, "k" * 100_000]),
        encode([b"b", "t", "e", {f"h{number}": "v" for number in range(250)}, {}, "x", "k"]),
        b"\x97\xc4\x01b\xa1t\xa1e\x81\x91\x01\x02\x80\xa1x\xa1k",
    ]  # fmt: skip
    raw.hello()
    raw.declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 0}
    raw.call(m.DeclareQueue(0, "src", True, False, False, arguments, False))
    for seq, envelope in enumerate(hostile, 1):
        assert isinstance(raw.publish("src", seq, envelope), m.PublishConfirm)
    nested = b"\x97\xc4\x01b\xa1t\xa1e" + b"\x81\xa1a" * 3000 + b"\xc0\x80\xa1x\xa1k"
    assert raw.publish("src", len(hostile) + 1, nested).code == "invalid_message", "a consumer might decode it"
    wait_until(lambda: raw.declare("dead").ready == len(hostile), 60, "all dead letters")
