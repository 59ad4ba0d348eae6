"""What is masked: values by name, at any depth and in texts."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata.masking import MASK, MAX_DEPTH, Masking


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'password': 'x y', 'user': 'me'}", f"{{'password': {MASK}, 'user': 'me'}}"),
        ('login(db_password="a\\"b", n=1)', f"login(db_password={MASK}, n=1)"),
        ("Authorization: Bearer", f"Authorization: {MASK}"),
        ("Authorization: Bearer eyJh.b-c, then", f"Authorization: {MASK}, then"),
        ('curl -H "authorization: basic dTpw" x', f'curl -H "authorization: {MASK}" x'),
        ("connect(password=b'x y', n=1)", f"connect(password={MASK}, n=1)"),
        (r'"{\"password\": \"it\'s x\", \"n\": 1}"', rf'"{{\"password\": {MASK}, \"n\": 1}}"'),
        ("ACCESS_TOKEN=abc", f"ACCESS_TOKEN={MASK}"),
        ("{'token': 'cut off", f"{{'token': {MASK}"),
        ("the password is wrong", "the password is wrong"),
        ("tokens were 5", "tokens were 5"),
    ],
    ids=["dict", "call", "header", "bearer", "basic", "bytes", "quoted twice", "variable", "cut", "prose", "no sign"],
)
def test_texts(text: str, shown: str) -> None:
    assert Masking().text(text) == shown


def test_values_at_any_depth() -> None:
    given = {"a": [{"api_key": {"x": 1}}, "secret=1"], "n": 2, 3: None}
    assert Masking().value(given) == {"a": [{"api_key": MASK}, f"secret={MASK}"], "n": 2, 3: None}


def test_other_names() -> None:
    masking = Masking(("iban",))
    assert masking.value({"IBAN": "DE1", "password": "x"}) == {"IBAN": MASK, "password": "x"}
    assert Masking(()).value({"password": "x"}) == {"password": "x"}


def test_what_is_nested_too_deep_is_not_shown() -> None:
    value: Any = {"password": "x"}
    for _ in range(MAX_DEPTH + 5):
        value = [value]
    assert "x" not in repr(Masking().value(value)).replace("…", "")
