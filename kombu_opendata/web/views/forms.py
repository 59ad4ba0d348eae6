"""Forms: the fields of a dialog from the parameters of its action, and parameters from a submitted form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ..error_reports import sentence

#: a form's items, in which a name may occur more than once
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


def form_fields(parameters: type[BaseModel], fixed: frozenset[str], items: Items) -> list[FormField]:
    """Return the fields of a dialog with their values; those that the button sets are hidden."""
    rows = []
    for name, field in parameters.model_fields.items():
        values = tuple(value for key, value in items if key == name)
        kind, choices = _kind(field)
        if name in fixed and (values or kind == "text" and not field.is_required() or _is_list(field)):
            kind = "hidden"
        rows.append(
            FormField(
                name=name,
                title=field.title or name,
                hint=field.description or "",
                kind=kind,
                values=values or _default(field),
                choices=choices,
                is_required=field.is_required(),
            )
        )
    return rows


def parameters_of(parameters: type[BaseModel], items: Items) -> dict[str, Any]:
    """Return the parameters of a form: lists for repeatable fields, without empty values."""
    values: dict[str, Any] = {}
    for name, value in items:
        field = parameters.model_fields.get(name)
        if field is not None and _is_list(field):
            values[name] = [*values.get(name, ()), *([value] if value else ())]
        elif value != "" or (field is not None and field.is_required()):
            values[name] = value
    return values


def faults_of(parameters: type[BaseModel], error: ValidationError) -> list[str]:
    """Return the validation errors, a sentence for each field, with the field's label."""
    return [
        sentence(_label(parameters, problem["loc"]), problem)
        for problem in error.errors(include_url=False, include_input=False)
    ]


def _label(parameters: type[BaseModel], location: Sequence[Any]) -> str:
    field = parameters.model_fields.get(str(location[0])) if location else None
    return (field.title if field is not None else None) or ".".join(map(str, location)) or "The form"


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(kind) is list for kind in _kinds(field.annotation))


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type alone."""
    return get_args(annotation) if type(None) in get_args(annotation) else (annotation,)


def _kind(field: FieldInfo) -> tuple[str, tuple[str, ...]]:
    extra = field.json_schema_extra
    if isinstance(extra, Mapping) and extra.get("lines"):
        return "lines", ()
    for kind in _kinds(field.annotation):
        if get_origin(kind) is Literal:
            return "choice", tuple(map(str, get_args(kind)))
        if kind is bool:
            return "checkbox", ()
        if kind in (int, float):
            return "number", ()
    return "text", ()


def _default(field: FieldInfo) -> tuple[str, ...]:
    default = field.get_default(call_default_factory=True, validated_data={})
    if default in (PydanticUndefined, None, "", False) or default in ([], {}):
        return ()
    return (default if isinstance(default, str) else json.dumps(default),)
