"""Masking of confidential values: arguments and headers with names such as ``password``.

The names are searched for in names of any nesting, and in texts such as ``argsrepr`` and tracebacks, which contain
``name=value`` and ``'name': value``. Positional arguments have no names, so they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "••••••"
#: parts of names, in any case
NAMES = (
    "password", "passwd", "passphrase", "secret", "token", "api_key", "apikey", "authorization", "credential",
    "private_key", "cookie",
)  # fmt: skip
#: values that are nested deeper are not shown at all
MAX_DEPTH = 50
#: after a name: the rest of the word, a sign, and a value
_AFTER = re.compile(
    r"""([\w.-]{0,64}\\{0,3}["']?\s{0,8}(?:=>|[:=])\s{0,8})
    (?:(?i:basic|bearer|digest|negotiate|token)\s{1,8}[^\s,;)}\]'"]+  # of a header, with its scheme
    |[bru]{0,2}'(?:[^'\\\n]|\\.)*'?|[bru]{0,2}"(?:[^"\\\n]|\\.)*"?  # quoted
    |\\{1,3}'[^'\n]*'?|\\{1,3}"[^"\n]*"?  # quoted in a text that is quoted itself
    |[^\s,;)}\]]+)""",
    re.VERBOSE,
)


class Masking:
    """Masking of the values of these names."""

    def __init__(self, names: Iterable[str] = NAMES) -> None:
        self._name = re.compile("|".join(map(re.escape, names)) or r"(?!)", re.IGNORECASE)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return a value without those of masked names, at any depth; texts in it are masked as texts."""
        if depth > MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            return {
                name: MASK if self._name.search(str(name)) else self.value(item, depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth + 1) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Return a text in which the values of masked names are replaced; the time is linear in its length."""
        parts, end = [], 0
        for name in self._name.finditer(text):
            match = _AFTER.match(text, name.end()) if name.start() >= end else None
            if match is not None:
                parts += [text[end : name.end()], match[1], MASK]
                end = match.end()
        return "".join((*parts, text[end:]))
