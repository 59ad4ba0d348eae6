"""A hook of mkdocs: the examples of commands, which their help ends with and mkdocs-click leaves out."""

from __future__ import annotations

import html
import re
from typing import Any

import click
from mkdocs.structure.pages import Page

from kombu_opendata.cli.administration.brokers import broker_tools
from kombu_opendata.cli.root import main

_PAGE = "reference/commands.md"
_HEADING = re.compile(r"(?=<h[2-6] id=)")
_COMMAND = re.compile(r"<h[2-6] [^>]*>opendata-queue((?: [a-z-]+)*)<")


def on_page_content(content: str, page: Page, **_: Any) -> str:
    if page.file.src_uri != _PAGE:
        return content
    return "".join(map(_with_example, _HEADING.split(content)))


def _with_example(section: str) -> str:
    named = _COMMAND.match(section)
    command = _command(named[1].split()) if named else None
    if command is None or not command.epilog:
        return section
    example = html.escape(command.epilog.removeprefix("Example: "))
    return f"{section}<p><strong>Example:</strong></p>\n<pre><code>{example}</code></pre>\n"


def _command(words: list[str]) -> click.Command | None:
    """The command of these words; the tools of ``broker`` are not below it in click."""
    found: click.Command | None = main
    for word in words:
        if not isinstance(found, click.Group):
            found = broker_tools
        found = found.commands.get(word)
    return found
