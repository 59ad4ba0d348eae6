"""Sources of options: the command line, then the environment, then a TOML file, then the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InvalidConfiguration
from .kinds import brief
from .options import ENVIRONMENT, BrokerOptions, Spec, public_specs, specs

CONFIG_VARIABLE = f"{ENVIRONMENT}CONFIG"
COMMAND_LINE, DEFAULT = "command line", "default"
MAX_FILE_BYTES = 1 << 20
#: variables with this prefix that are not the broker's options
_OTHERS = {CONFIG_VARIABLE, *(f"{ENVIRONMENT}{name}" for name in ("URL", "CA", "CERT", "KEY"))}


@dataclass
class Configuration:
    """Options from all sources.

    Attributes:
        values: the values by field of BrokerOptions, without defaults.
        sources: the source of each of these: ``command line``, a variable, or a file.
        errors: the errors, each with its source.
        warnings: probable mistakes.
    """

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def options(self) -> BrokerOptions:
        """Return the options; raise InvalidConfiguration if there are errors."""
        if self.errors:
            raise invalid(self.errors)
        return BrokerOptions(**self.values)

    def valid_part(self) -> BrokerOptions | None:
        """Return the options, with defaults for invalid ones; None if one of these has no default."""
        is_whole = all(spec.field in self.values for spec in specs() if spec.required)
        return BrokerOptions(**self.values) if is_whole else None


def invalid(errors: list[str]) -> InvalidConfiguration:
    """Return the error for all these errors of the configuration."""
    lines = errors if len(errors) == 1 else (f"{len(errors)} errors in the configuration:", *errors)
    text = "\n  ".join(lines)
    return InvalidConfiguration(text, faults=errors)


def configuration(arguments: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Configuration:
    """Collect the options from all sources, and all errors, not only the first.

    Args:
        arguments: the options of the command line, by field, unparsed.
        file: the file of ``--config``; None means the file that :data:`CONFIG_VARIABLE` names, if it is set.
    """
    result = Configuration()
    for spec in specs():
        if spec.field in arguments:
            _add(result, spec, COMMAND_LINE, spec.flag, arguments[spec.field])
    _add_environment(result, environment)
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    is_read = True
    if file is not None:
        is_read = _add_file(result, file)
    if is_read:  # otherwise the file may have the missing options
        result.errors += [
            _missing(spec, file) for spec in specs() if spec.required and spec.field not in result.sources
        ]
    return result


def _missing(spec: Spec, file: Path | None) -> str:
    where = f"{spec.key} in {file}" if file else f"{spec.key} in a --config file"
    return f"{spec.flag} is missing: give it, or {spec.variable}, or {where}"


def _add(result: Configuration, spec: Spec, source: str, place: str, text: Any, folder: str = "") -> None:
    """Add a value unless a source of a higher rank has one; an invalid value is an error in either case."""
    try:
        value = spec.read(text, folder)
    except ValueError as exc:
        result.errors.append(f"{place}: {exc}")
        result.sources.setdefault(spec.field, source)  # neither missing nor the default
        return
    if spec.field not in result.sources:
        result.values[spec.field], result.sources[spec.field] = value, source


def _add_environment(result: Configuration, environment: Mapping[str, str]) -> None:
    for spec in public_specs():
        text = environment.get(spec.variable, "")
        if text:  # an empty variable counts as unset, as a container's configuration often leaves it empty
            value = [part.strip() for part in text.split(",")] if spec.repeated else text
            _add(result, spec, spec.variable, spec.variable, value)
    result.warnings += _misspelt(environment)


def _misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings for variables that resemble an option's.

    Other variables with the prefix are ignored: Kubernetes sets some for a service that is named opendata-queue.
    """
    known = [spec.variable.removeprefix(ENVIRONMENT) for spec in public_specs()]
    for name in sorted(environment):
        end = name.removeprefix(ENVIRONMENT)
        if end == name or end in known or name in _OTHERS:
            continue
        for close in get_close_matches(end, known, n=1, cutoff=0.8):
            yield f"the variable {name} is not an option: do you mean {ENVIRONMENT}{close}?"


def _add_file(result: Configuration, file: Path) -> bool:
    """Add the values of a file; return True if it could be read."""
    try:
        table = read_table(file)
    except InvalidConfiguration as exc:
        result.errors.append(exc.text)
        return False
    known = {spec.key: spec for spec in public_specs()}
    folder = str(file.absolute().parent)
    for key, value in table.items():
        if (spec := known.get(key)) is None:
            result.errors.append(f"{file}: {_unknown(key, list(known))}")
            continue
        _add(result, spec, str(file), f"{file}: {key}", value, folder)
    return True


def _unknown(key: str, known: list[str]) -> str:
    close = get_close_matches(key.lower().replace("_", "-"), known, n=1)
    advice = f"do you mean {close[0]}?" if close else "opendata-queue config show lists all keys"
    return f"there is no option {brief(key)}: {advice}"


def read_table(file: Path) -> dict[str, Any]:
    """Return the keys and values of a TOML file; raise InvalidConfiguration if it can't be read, or is not TOML."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidConfiguration(f"the config file {file} can't be read: {reason}", path=str(file)) from exc
    if len(data) > MAX_FILE_BYTES:
        raise InvalidConfiguration(
            f"the config file {file} is larger than {MAX_FILE_BYTES >> 20} MiB: is it another file?", path=str(file)
        )
    return parse_table(data, f"the config file {file}")


def parse_table(data: bytes, name: str) -> dict[str, Any]:
    """Return the keys and values of TOML; raise InvalidConfiguration if the data is not TOML."""
    try:
        text = data.decode("utf-8-sig")  # some editors put a byte order mark before it
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InvalidConfiguration(
            f"{name} is not UTF-8, in line {line}: save it with that encoding", path=name
        ) from exc
    try:
        return msgspec.toml.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidConfiguration(f"{name} is not valid TOML: {exc}", path=name) from exc
