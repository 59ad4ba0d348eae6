"""What is shown of a large body: its beginning, and no time is spent on the rest."""

from __future__ import annotations

import json
from typing import Any

from kombu_opendata.masking import MASK, Masking
from kombu_opendata.queue_client.message_models import Message
from kombu_opendata.web.reports.body_text import MAX_SHOWN, Body, body_of, shown_json


class Counting(Masking):
    """Counts the characters that it is asked to mask."""

    asked = 0

    def text(self, text: str) -> str:
        self.asked += len(text)
        return super().text(text)


def body(value: Any, masking: Masking | None = None) -> Body:
    raw = json.dumps(value).encode()
    return body_of(Message(1, "q", content_type="application/json", raw=raw), masking or Masking())


def test_only_the_beginning_is_masked() -> None:
    masking = Counting()
    shown = body({"rows": ["password=x " * 100] * 10_000}, masking)
    assert masking.asked <= MAX_SHOWN
    assert shown.is_cut
    assert len(shown.text) <= MAX_SHOWN
    assert f"password={MASK}" in shown.text


def test_a_small_value_is_whole() -> None:
    assert shown_json({"a": [1, None, "x"], "token": 1}, Masking()) == (
        f'{{\n  "a": [\n    1,\n    null,\n    "x"\n  ],\n  "token": "{MASK}"\n}}'
    )
    assert not body({"a": "x" * 1000}).is_cut


def test_what_is_left_out_is_said() -> None:
    assert shown_json(["x" * MAX_SHOWN, "y"], Masking()).endswith("\n…")
    assert body({"password": "x" * MAX_SHOWN, "b": 1}).is_cut
    assert body(list(range(MAX_SHOWN))).is_cut


def test_what_is_nested_too_deep_is_not_shown() -> None:
    value: Any = "deep"
    for _ in range(60):
        value = [value]
    assert "…" in body(value).text
    assert "deep" not in body(value).text
    deeper = body(json.loads("[" * 150 + "]" * 150))
    assert deeper.kind == "too large"
    assert deeper.text.startswith("The body is too large to display: it is nested more than 100 levels deep. Save it")
