"""A hook of mkdocs: pages are written as code hosts show Markdown, which Python-Markdown reads a little differently.

* A pipe in the code of a table's cell is escaped there, and is not here.
* What belongs to an item of a list is indented as far as the item's text there, and by four spaces here.
* One of two pictures is chosen by the browser's preference there, and by the page's palette here.

mkdocs-click does not know what click gives as the default of an option that has none.
"""

from __future__ import annotations

import re
from typing import Any

_ROW = re.compile(r"(?m)^\|.*\|$")
_CODE = re.compile(r"`[^`]*`")
_ITEM = re.compile(r"^( *)([*-]|\d+\.)( +)\S")
_PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]+)" src="([^"]+)">\s*</picture>')
_FENCE = re.compile(r"^ *(```+|~~~+)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    rows = _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
    pictures = _PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", rows)
    return "\n".join(_indented(pictures.split("\n")))


def on_page_content(html: str, **_: Any) -> str:
    return html.replace("<code>Sentinel.UNSET</code>", "")


def _indented(lines: list[str]) -> list[str]:
    """The lines, with what belongs to an item of a top-level list indented by four spaces."""
    done: list[str] = []
    width = 0  # of the mark and the spaces of the item that we are in
    fenced = parted = False  # in a code block; the item has a blank line
    for line in lines:
        item = None if fenced else _ITEM.match(line)
        if item and not item[1]:
            if parted and done[-1].startswith("    "):
                done.append("")  # or the item would go on with the paragraph
            width, parted = len(item[2]) + len(item[3]), False
        elif width and line.startswith(" " * width):
            line = "    " + line[width:]
        elif line.strip():
            width, parted = 0, False
        else:
            parted = bool(width)
        if _FENCE.match(line):
            fenced = not fenced
        done.append(line)
    return done
