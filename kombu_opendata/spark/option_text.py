"""Names of Spark's options, and parsing of options that are lists of names, or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from ..errors import RequestError


def names_of(text: str, option: str) -> tuple[str, ...]:
    """Return names that are separated by commas, or in a JSON array; raise RequestError for other JSON."""
    if text.lstrip().startswith("["):
        value = json_of(text, option)
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return tuple(value)
        raise RequestError(f"the option {option} must be a JSON array of names", option=option)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def json_of(text: str, option: str) -> Any:
    """Return the value of an option's JSON; raise RequestError if it is invalid."""
    try:
        return json.loads(text)
    except ValueError as exc:
        raise RequestError(f"the option {option} is not JSON: {exc}", option=option) from exc


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an unknown option: the nearest name, in any spelling, or all names."""
    bare = {_bare(option): option for option in sorted(known)}
    near = get_close_matches(_bare(name), bare, n=1, cutoff=0.5)
    return f": do you mean {bare[near[0]]!r}?" if near else f": choose from {', '.join(sorted(known))}"


def _bare(name: str) -> str:
    """Return a name without the differences between ``job_id``, ``jobId`` and ``job-id``."""
    return re.sub(r"[\W_]", "", name).lower()
