"""An extension of Griffe: docstrings become Markdown, which mkdocstrings shows.

The docstrings of the package have Google's sections, and reStructuredText between them: roles, simple tables and
underlined headings. Fields of errors and records say what they are in a comment at the end of their line, which becomes
their docstring.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|attr|exc|data|obj):`[~.]?([^`]+)`")
_CLIENT = "kombu_opendata.queue_client"
_HEADING = re.compile(r"(?m)^(\S.*)\n=+$")
_TABLE = re.compile(r"(?m)^(=+(?: +=+)+)\n((?:.+\n)+)")
_SHARED_ENTRY = re.compile(r"(?m)^    (\w+(?:, \w+)+): (.+(?:\n {5,}.+)*)$")
_COMMENT = re.compile(r"  # (?!type:|noqa|fmt:)(.+)$")


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    text = _TABLE.sub(_table, text + "\n")
    text = _SHARED_ENTRY.sub(_entries, text)
    text = _HEADING.sub(r"#### \1", text)
    text = re.sub(r"(?m)^((?!\* |  ).+)\n(?=\* )", r"\1\n\n", text)
    text = re.sub(r"(?m)::$", ":", text)
    return text.rstrip()


def linked(text: str, obj: griffe.Object) -> str:
    """The same with its roles as links, where the site has what they name."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        try:
            target = _path(name, obj)
        except griffe.NameResolutionError:
            return f"`{name}`"
        return f'<autoref identifier="{target}" optional><code>{name}</code></autoref>'

    return _ROLE.sub(link, text)


def _path(name: str, obj: griffe.Object) -> str:
    if name.startswith("kombu_opendata."):
        return name
    if obj.path.startswith(f"{_CLIENT}.") and obj.is_function and "." not in name and name.islower():
        return f"{_CLIENT}.QueueClient.{name}"  # whose calls stand in several modules
    return obj.resolve(name)


def _entries(match: re.Match[str]) -> str:
    """An entry of a section that stands for several parameters, as one for each."""
    return "\n".join(f"    {name}: {match[2]}" for name in match[1].split(", "))


def _table(match: re.Match[str]) -> str:
    """A simple table; a line that is indented in its first column goes on with the row above."""
    starts = [found.start() for found in re.finditer("=+", match[1])]
    rows: list[list[str]] = []
    for line in match[2].splitlines():
        if re.fullmatch("[= ]+", line):
            continue
        cells = [line[at:end].strip() for at, end in zip(starts, [*starts[1:], None], strict=True)]
        if not cells[0] and rows:
            rows[-1] = [f"{above} {below}".strip() for above, below in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(starts) + "|", *lines[1:]]) + "\n"


class Docstrings(griffe.Extension):
    """Converts each docstring when it is read from the source, and its links when all names are known."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = linked(obj.docstring.value, obj)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring or not attr.lines or attr.lineno is None or not isinstance(attr.filepath, Path):
            return
        above = attr.lines_collection[attr.filepath][: attr.lineno - 1]
        text = ""
        if said := _COMMENT.search(attr.lines[-1]):
            text = said[1]
        while not said and above and (line := above.pop().strip()).startswith("#: "):
            text = f"{line[3:]} {text}".strip()
        if text:
            attr.docstring = griffe.Docstring(f"{text[:1].upper()}{text[1:].rstrip('.')}.", parent=attr)
