"""Where in a selector's text something is wrong, shown with a caret."""

from __future__ import annotations

from ..errors import SelectorError

#: of a long line so much is shown on either side of the place
_AROUND = 60


def refusal(text: str, at: int, what: str) -> SelectorError:
    """The error for what is wrong at character ``at`` (0 is the first, ``len(text)`` the end)."""
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text.count("\n", 0, at) + 1
    column = at - begin + 1
    first, last = max(begin, at - _AROUND), min(len(text) if end < 0 else end, at + _AROUND)
    shown = "".join(each if each.isprintable() else " " for each in text[first:last])
    before, after = "…" if first > begin else "", "…" if last < (len(text) if end < 0 else end) else ""
    caret = f"{before}{shown}{after}\n{' ' * (len(before) + at - first)}^"
    return SelectorError(f"line {line}, column {column}: {what}\n{caret}", line=line, column=column, caret=caret)
