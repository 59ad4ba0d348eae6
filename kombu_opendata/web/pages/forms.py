"""The fields of a dialog, from the parameters of its action; and parameters from a form that was sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ..error_reports import sentence

#: a form's items, in which a name may come more than once
Items = list[tuple[str, str]]


@dataclass(frozen=True)
class FormField:
    """A field of a form; ``kind`` is one of hidden, text, number, time, lines, checkbox and choice."""

    name: str
    title: str
    hint: str
    kind: str
    values: tuple[str, ...]
    choices: tuple[str, ...] = ()
    is_required: bool = False

    @property
    def value(self) -> str:
        """The (first) value; empty if there is none."""
        return self.values[0] if self.values else ""


def form_fields(parameters: type[BaseModel], given: frozenset[str], items: Items) -> list[FormField]:
    """The fields of a dialog with what is filled in; those that the button gave are hidden."""
    found = []
    for name, field in parameters.model_fields.items():
        values = tuple(value for key, value in items if key == name)
        kind, choices = _kind(field)
        if name in given and (values or kind == "text" and not field.is_required() or _is_list(field)):
            kind = "hidden"
        found.append(
            FormField(
                name, field.title or name, field.description or "", kind, values or _default(field), choices,
                field.is_required(),
            )
        )  # fmt: skip
    return found


def parameters_of(parameters: type[BaseModel], items: Items) -> dict[str, Any]:
    """Values for the parameters, from a form: lists of those that may come more than once, and no empty ones."""
    found: dict[str, Any] = {}
    for name, value in items:
        field = parameters.model_fields.get(name)
        if field is not None and _is_list(field):
            found[name] = [*found.get(name, ()), *([value] if value else ())]
        elif value != "" or (field is not None and field.is_required()):
            found[name] = value
    return found


def faults_of(parameters: type[BaseModel], error: ValidationError) -> list[str]:
    """Return what is wrong, a sentence for each field, which has the field's label."""
    return [
        sentence(_label(parameters, problem["loc"]), problem)
        for problem in error.errors(include_url=False, include_input=False)
    ]


def _label(parameters: type[BaseModel], location: Sequence[Any]) -> str:
    field = parameters.model_fields.get(str(location[0])) if location else None
    return (field.title if field is not None else None) or ".".join(map(str, location)) or "The form"


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(one) is list for one in _kinds(field.annotation))


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return get_args(annotation) if type(None) in get_args(annotation) else (annotation,)


def _kind(field: FieldInfo) -> tuple[str, tuple[str, ...]]:
    extra = field.json_schema_extra
    if isinstance(extra, Mapping) and extra.get("lines"):
        return "lines", ()
    for one in _kinds(field.annotation):
        if get_origin(one) is Literal:
            return "choice", tuple(map(str, get_args(one)))
        if one is bool:
            return "checkbox", ()
        if one in (int, float):
            return "number", ()
    return "text", ()


def _default(field: FieldInfo) -> tuple[str, ...]:
    default = field.get_default(call_default_factory=True, validated_data={})
    if default in (PydanticUndefined, None, "", False) or default in ([], {}):
        return ()
    return (default if isinstance(default, str) else json.dumps(default),)
