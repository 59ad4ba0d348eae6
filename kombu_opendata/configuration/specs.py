"""What is said about a field of options, and its names on the command line, in a file and in the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from msgspec.structs import fields

from .kinds import Kind

ENVIRONMENT = "OPENDATA_QUEUE_"


@dataclass(frozen=True)
class Option:
    """What is said about a field.

    Attributes:
        kind: which values it takes.
        help: what it does, for ``--help``.
        repeated: it takes several values: the option is repeated, the key has a list, the variable has commas.
        internal: only the command line has it, without being shown: it is for whoever starts an embedded broker.
    """

    kind: Kind[Any]
    help: str = ""
    repeated: bool = False
    internal: bool = False


@dataclass(frozen=True)
class Spec:
    """An option with its names.

    Attributes:
        field: of :class:`BrokerOptions`.
        key: of a TOML file.
        default: ``msgspec.NODEFAULT`` if it must be given.
    """

    field: str
    key: str
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT + self.key.upper().replace("-", "_")

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    def read(self, value: object, folder: str = "") -> Any:
        """The field's value from one of a TOML file, or from a text (or a list of texts, if it is repeated).

        Raises:
            ValueError: it is not valid.
        """
        kind = self.option.kind
        if not self.option.repeated:
            return kind.read(value, folder)
        found = tuple(kind.read(one, folder) for one in (value if isinstance(value, (list, tuple)) else (value,)))
        if not found:
            raise ValueError("the list is empty: give at least one")
        return found

    def shown(self, value: Any) -> Any:
        """A value as a TOML file may have it; None if there is none."""
        if value is None:
            return None
        kind = self.option.kind
        return [kind.shown(one) for one in value] if self.option.repeated else kind.shown(value)

    def described(self, value: Any) -> str:
        """A value as the help has it; empty if there is none."""
        if value is None:
            return ""
        kind = self.option.kind
        return ", ".join(kind.described(one) for one in (value if self.option.repeated else (value,)))


def specs_of(options: type[msgspec.Struct]) -> tuple[Spec, ...]:
    """The options that are the fields of a struct, each annotated with its :class:`Option`."""
    found = []
    for field in fields(options):
        (option,) = (one for one in get_args(field.type) if isinstance(one, Option))
        found.append(Spec(field.name, field.encode_name, option, field.default))
    return tuple(found)
