"""Names of Spark's options, and parsing of options that are lists of names, or JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from ..bucket_credentials import SETTINGS
from ..errors import RequestError

T = TypeVar("T")


def names_of(text: str, option: str) -> tuple[str, ...]:
    """Return names that are separated by commas, or in a JSON array; raise RequestError for other JSON."""
    if text.lstrip().startswith("["):
        return tuple(json_of(text, option, list[str], "a JSON array of names"))
    return tuple(name.strip() for name in text.split(",") if name.strip())


def json_of(text: str, option: str, kind: type[T], what: str) -> T:
    """Return the value of an option's JSON; raise RequestError, with what it must be, if it is another."""
    try:
        return msgspec.json.decode(text, type=kind)
    except ValueError as exc:
        raise RequestError(f"the option {option} must be {what}: {exc}", option=option) from exc


def check_known(name: str, known: Collection[str]) -> None:
    """Raise RequestError if there is no such option."""
    if name not in known:
        raise RequestError(f"unknown option {name!r}{did_you_mean(name, known)}", option=name)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of an error about an unknown option: the nearest name, in any spelling, or all names."""
    near = nearest(name, known)
    return f": do you mean {near!r}?" if near else f": choose from {', '.join(sorted(known))}"


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that is nearest to this one, in any spelling; empty if none is similar."""
    bare = {_bare(option): option for option in sorted(known)}
    near = get_close_matches(_bare(name), bare, n=1, cutoff=0.5)
    return bare[near[0]] if near else ""


def _bare(name: str) -> str:
    """Return a name without the differences between ``job_id``, ``jobId`` and ``job-id``."""
    return re.sub(r"[\W_]", "", name).lower()


BUCKET = {f"bucket_{name}": name for name in SETTINGS}


def bucket_settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a bucket among options."""
    return {name: options[option] for option, name in BUCKET.items() if options.get(option)}


def bucket_options(settings: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options for the settings of a bucket; raise RequestError for an unknown one.

    Spark masks options whose names contain ``secret`` or ``token`` in plans and its UI.
    """
    for name, value in (settings or {}).items():
        if name not in SETTINGS:
            raise RequestError(f"unknown setting {name!r} of a bucket{did_you_mean(name, SETTINGS)}", option="bucket")
        if not isinstance(value, str):
            raise RequestError(f"the setting {name} of a bucket must be a text", option="bucket")
    return {f"bucket_{name}": value for name, value in (settings or {}).items()}


def check_option(name: str, value: Any, is_valid: object, what: str) -> None:
    """Raise RequestError, with what the value of an option must be, unless it is valid."""
    if not is_valid:
        raise RequestError(f"{name} is {value!r:.200} and must be {what}", option=name)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise RequestError if the value of an option is not one of its choices."""
    check_option(name, value, value in choices, " or ".join(map(repr, choices)))


def check_column(name: str, columns: Sequence[str], hint: str = "") -> None:
    """Raise RequestError if no column of a frame has this name, or several have it, as Spark compares without case."""
    if name not in columns:
        raise RequestError(f"there is no column {name!r}: the frame has {', '.join(columns)}{hint}", column=name)
    if len(same := [column for column in columns if column.lower() == name.lower()]) > 1:
        text = f"several columns are named {name!r}: {', '.join(same)}; rename all but one of them"
        raise RequestError(text, column=name)
