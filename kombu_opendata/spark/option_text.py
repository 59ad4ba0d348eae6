"""Texts of Spark's options that are lists of names, or JSON."""

from __future__ import annotations

import json
from typing import Any

from ..errors import RequestError


def names_of(text: str, option: str) -> tuple[str, ...]:
    """Names that are separated by commas, or in a JSON array; raises RequestError."""
    if text.lstrip().startswith("["):
        found = json_of(text, option)
        if isinstance(found, list) and all(isinstance(name, str) for name in found):
            return tuple(found)
        raise RequestError(f"the option {option} must be a JSON array of names", option=option)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def json_of(text: str, option: str) -> Any:
    """The value of an option's JSON; raises RequestError."""
    try:
        return json.loads(text)
    except ValueError as exc:
        raise RequestError(f"the option {option} is not JSON: {exc}", option=option) from exc
