"""The public names of the package, with their signatures, as text: `python -m tools.public_api` prints it.

`tests/golden/public_api.txt` has the text of the last commit, so a change of the public API is seen in its diff.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator

# The modules of docs/public-api.md. `web` and `spark` need their extras. The first has names of the others, too.
MODULES = (
    "kombu_opendata.celery_integration",
    "kombu_opendata.errors",
    "kombu_opendata.queue_client",
    "kombu_opendata.selectors",
    "kombu_opendata.spark",
    "kombu_opendata.transport",
    "kombu_opendata.web",
    "kombu_opendata",
)


def public_names(module: object) -> list[str]:
    """Return the names in `__all__`, or else those of the classes and functions that the module defines."""
    if names := getattr(module, "__all__", None):
        return sorted(names)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == getattr(module, "__name__", "")
    )


def signature(value: object) -> str:
    """Return the parameters and the type of the result, or nothing if Python knows none."""
    try:
        return str(inspect.signature(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def described_member(base: type, name: str, value: object) -> str:
    """Return a member of a class with its parameters, or with its type."""
    value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    if callable(value):
        return f"{name}{signature(value)}"
    getter = value.fget if isinstance(value, property) else getattr(value, "func", None)
    kind = inspect.get_annotations(base).get(name)
    if kind is None:
        kind = inspect.get_annotations(getter).get("return") if getter else type(value)
    kind = getattr(kind, "__forward_arg__", kind)
    return f"{name}: {kind if isinstance(kind, str) else inspect.formatannotation(kind)}"


def members(cls: type, described: set[type]) -> Iterator[str]:
    """Yield a line for each public member of a class that no described base class has."""
    if issubclass(cls, enum.Enum):
        yield from (f"  {member.name}" for member in cls)
        return
    lines: dict[str, str] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("kombu_opendata") and base not in described:
            for name in (*vars(base), *inspect.get_annotations(base)):
                if not name.startswith("_") and name not in lines:
                    lines[name] = f"  {described_member(base, name, inspect.getattr_static(cls, name, None))}"
    yield from sorted(lines.values())


def public_api() -> str:
    """Return one paragraph for each public module."""
    paragraphs, described = [], set[type]()
    for path in MODULES:
        module = importlib.import_module(path)
        lines = [path]
        values = {name: getattr(module, name) for name in public_names(module)}
        # A class stands behind its bases, whose members it does not repeat.
        for name, value in sorted(values.items(), key=lambda item: len(getattr(item[1], "__mro__", ()))):
            if value in described:
                lines.append(name)
                continue
            lines.append(f"{name}{signature(value) if callable(value) else ''}")
            if inspect.isclass(value):
                lines += members(value, described)
                described.add(value)
        paragraphs.append("\n".join(lines) + "\n")
    return "\n".join(paragraphs)


if __name__ == "__main__":
    print(public_api(), end="")
