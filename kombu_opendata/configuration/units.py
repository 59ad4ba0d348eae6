"""Conversion of texts with units: durations (``1h30m``) and sizes (``20G``)."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_MAX_SECONDS = 1e10  # three hundred years
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%", re.ASCII)
_SIZE_WITH_B = re.compile(r"(\d{1,19}) ?([KMGTkmgt]) ?i?[Bb]?", re.ASCII)
_SIZE = re.compile(r"(\d{1,19})([KMGTkmgt]?)", re.ASCII)


def seconds_of(text: str) -> float | None:
    """Return ``30m``, ``1h30m`` or ``30d`` in seconds; None if the text is not a duration."""
    if not _DURATION.fullmatch(text):
        return None
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return total if total <= _MAX_SECONDS else None


def bytes_of(text: str) -> int | None:
    """Return ``500``, ``20G`` or ``1T`` in bytes; None if the text is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) << 10 * ("KMGT".index(match[2].upper()) + 1 if match[2] else 0)


def size_meant(text: str) -> str:
    """Return the advice to write ``16M`` instead of ``16MB`` or ``16 MiB``; empty if the text is not similar."""
    match = _SIZE_WITH_B.fullmatch(text.strip())
    return f"; do you mean {match[1]}{match[2].upper()}?" if match is not None else ""


def size_text(size: int) -> str:
    """Return a number of bytes in the form of :func:`bytes_of`, in the largest unit of which it is a multiple."""
    power = max(power for power in range(5) if size % (1 << 10 * power) == 0) if size else 0
    return f"{size >> 10 * power}{'KMGT'[power - 1] if power else ''}"


def percent_of(text: str) -> float | None:
    """Return the number in ``40%``; None if the text is not a percentage."""
    match = _PERCENT.fullmatch(text)
    return float(match[1]) if match is not None else None
