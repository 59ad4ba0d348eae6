"""Description of a field of options, and its names on the command line, in a file and in the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from msgspec.structs import fields

from .kinds import Kind

ENVIRONMENT = "OPENDATA_QUEUE_"


@dataclass(frozen=True)
class Option:
    """Description of a field.

    Attributes:
        kind: the kind of its values.
        help: the text for ``--help``.
        repeated: True if it accepts several values: the option is repeated, the key has a list, the variable has
            commas.
        internal: True if only the command line has it, hidden: it is for the client that starts an embedded broker.
    """

    kind: Kind[Any]
    help: str = ""
    repeated: bool = False
    internal: bool = False


@dataclass(frozen=True)
class Spec:
    """Option with its names.

    Attributes:
        field: the field of :class:`BrokerOptions`.
        key: the key in a TOML file.
        default: the default; ``msgspec.NODEFAULT`` if the option is required.
    """

    field: str
    key: str
    option: Option
    default: Any

    @property
    def flag(self) -> str:
        """Option of the command line."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Environment variable of the option."""
        return ENVIRONMENT + self.key.upper().replace("-", "_")

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    def read(self, value: object, folder: str = "") -> Any:
        """Return the field's value from a value of a TOML file, or from a text (or a list of texts, if it is repeated).

        Raises:
            ValueError: the value is not valid.
        """
        kind = self.option.kind
        if not self.option.repeated:
            return kind.read(value, folder)
        items = tuple(kind.read(item, folder) for item in (value if isinstance(value, (list, tuple)) else (value,)))
        if not items:
            raise ValueError("the list is empty: give at least one")
        return items

    def shown(self, value: Any) -> Any:
        """Return a value in the form of a TOML file; None if there is none."""
        if value is None:
            return None
        kind = self.option.kind
        return [kind.shown(item) for item in value] if self.option.repeated else kind.shown(value)

    def described(self, value: Any) -> str:
        """Return a value in the form of the help; empty if there is none."""
        if value is None:
            return ""
        kind = self.option.kind
        return ", ".join(kind.described(item) for item in (value if self.option.repeated else (value,)))


def specs_of(options: type[msgspec.Struct]) -> tuple[Spec, ...]:
    """Return the options that are the fields of a struct, each annotated with its :class:`Option`."""
    specs = []
    for field in fields(options):
        (option,) = (annotation for annotation in get_args(field.type) if isinstance(annotation, Option))
        specs.append(Spec(field.name, field.encode_name, option, field.default))
    return tuple(specs)
