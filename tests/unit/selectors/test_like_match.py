"""LIKE on hostile patterns and long texts: linear, where a regular expression would not end."""

from __future__ import annotations

import pytest

from kombu_opendata.selectors.like_match import compile_like, constant_prefix, constant_suffix

LONG = "a" * 65_000


@pytest.mark.parametrize(
    ("pattern", "result"),
    [
        ("%a" * 2_000 + "%b", False),
        ("%a" * 2_000 + "%", True),
        ("%a_" * 1_000 + "%b%", False),
        ("%" + "a" * 5_000 + "b%", False),
        ("%" + "_a" * 2_500 + "b%", False),
        ("%" + "_" * 8_000 + "b%", False),
        ("%_" * 8_000, True),
        ("%" * 16_000, True),
        ("%" + "a" * 8_000 + "_" + "a" * 8_000 + "%", True),
        ("_" * 65_000, True),
        ("_" * 64_999, False),
    ],
    ids=range(11),
)
def test_hostile(pattern: str, result: bool) -> None:
    assert compile_like(pattern)(LONG) is result


@pytest.mark.parametrize(
    ("pattern", "escape", "prefix", "whole", "suffix"),
    [
        ("abc", "", "abc", True, "abc"),
        ("", "", "", True, ""),
        ("a%b", "", "a", False, "b"),
        ("%", "", "", False, ""),
        ("a_b", "", "a", False, "b"),
        ("_", "", "", False, ""),
        ("a!%b%c!_", "!", "a%b", False, "c_"),
        ("%x_", "", "", False, ""),
        ("_x%yz", "", "", False, "yz"),
    ],
)
def test_what_all_that_match_have_in_common(pattern: str, escape: str, prefix: str, whole: bool, suffix: str) -> None:
    assert constant_prefix(pattern, escape) == (prefix, whole)
    assert constant_suffix(pattern, escape) == suffix
