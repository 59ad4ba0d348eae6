"""Kinds of option values, and conversion of texts with units: durations (``1h30m``) and sizes (``20G``).

A kind parses a text of the command line or the environment, or a value of a TOML file, where a number may also be
written as a text.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote

from .addresses import Listen, parse_authority, parse_listen

T = TypeVar("T")
_SHOWN = 100
#: a broker without any message uses some 60 MB
_LEAST_MEMORY = 64 << 20


def brief(value: Any) -> str:
    """Return a value as shown in errors."""
    text = repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class Kind(Generic[T]):
    """Kind of option values.

    ``metavar`` is the placeholder of a value in the help. ``allowed`` describes the valid values, unless the metavar
    lists them.
    """

    metavar = "TEXT"
    allowed = ""

    def read(self, value: object, folder: str = "") -> T:
        """Return the parsed value; raise ValueError, which names the kind, if it is not of this kind.

        Relative paths start at ``folder``; empty means the current folder.
        """
        raise NotImplementedError

    def shown(self, value: T) -> Any:
        """Return a value in the form of a TOML file."""
        return value

    def described(self, value: T) -> str:
        """Return a value in the form of the help."""
        return str(self.shown(value))


class _OfText(Kind[T]):
    """Kind of values that are texts; a TOML file may have a number in place of a text of digits."""

    _types: ClassVar[tuple[type, ...]] = (str, int)

    def read(self, value: object, folder: str = "") -> T:
        if isinstance(value, bool) or not isinstance(value, self._types):
            raise ValueError(f"{brief(value)} is not a text")
        return self.parse(str(value), folder)

    def parse(self, text: str, folder: str) -> T:
        """Return the value of a text; raise ValueError if it is invalid."""
        raise NotImplementedError


class Flag(Kind[bool]):
    """Kind of booleans."""

    metavar = ""
    _WORDS: ClassVar[dict[str, bool]] = {
        "true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False,
    }  # fmt: skip

    def read(self, value: object, folder: str = "") -> bool:
        if isinstance(value, bool):
            return value
        flag = self._WORDS.get(value.strip().lower()) if isinstance(value, str) else None
        if flag is None:
            raise ValueError(f"{brief(value)} is neither true nor false")
        return flag


class Word(_OfText[str]):
    """Kind of texts without spaces."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def parse(self, text: str, folder: str) -> str:
        if not text or not text.isprintable() or " " in text:
            raise ValueError(f"{brief(text)} is not a name")
        return text


class Choice(_OfText[str]):
    """Kind of values that are one of a few words; case is ignored."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.metavar = f"[{'|'.join(words)}]"

    def parse(self, text: str, folder: str) -> str:
        for word in self.words:
            if text.lower() == word.lower():
                return word
        raise ValueError(f"{brief(text)} is not one of {', '.join(self.words)}")


class NumberKind(Kind[float]):
    """Kind of numbers within bounds."""

    what = "a number"
    most: float = 10**10  # for every option, so that no sum or product overflows

    def __init__(self, low: float = 0, high: float | None = None, *, above: float = -math.inf, metavar: str = "N"):
        self.low = low
        self.high = high
        self.above = above
        self.metavar = metavar
        if self.above > -math.inf:
            self.allowed = f"more than {above:g}"
        elif self.high is not None:
            self.allowed = f"{low:,.15g} to {high:,.15g}"
        else:
            self.allowed = f"at least {low:,.15g}"

    def read(self, value: object, folder: str = "") -> float:
        number = self.parse(value.strip()) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"{brief(value)} is not {self.what}{self.advice(value)}")
        if not (self.low <= number and self.above < number):
            raise ValueError(f"{brief(value)} is out of range: give {self.allowed}")
        if number > (self.most if self.high is None else self.high):
            raise ValueError(
                f"{brief(value)} is out of range: give {self.allowed if self.high else f'at most {self.most:,}'}"
            )
        return float(number)

    def advice(self, value: object) -> str:
        """Return a suggestion for a value that is not a number."""
        return ""

    def parse(self, text: str) -> float | None:
        """Return the number that a text names; None if it names none."""
        try:
            return float(text)
        except ValueError:
            return None

    def shown(self, value: float) -> Any:
        return int(value) if value == int(value) else value


class WholeNumberKind(NumberKind):
    """Kind of whole numbers within bounds."""

    what = "a whole number"

    def read(self, value: object, folder: str = "") -> int:
        if isinstance(value, float):
            raise ValueError(f"{brief(value)} is not {self.what}")
        return int(super().read(value))

    def parse(self, text: str) -> int | None:
        return int(text) if len(text) < _SHOWN and text.lstrip("-").isdecimal() and text.isascii() else None


class Size(WholeNumberKind):
    """Kind of numbers of bytes."""

    what = "a size: write a number of bytes, or 500M, 20G, 1T"
    most = 1 << 60

    def __init__(self, low: int = 0, high: int | None = None) -> None:
        super().__init__(low, high, metavar="BYTES")
        self.allowed = f"at least {size_text(low)}" if high is None else f"{size_text(low)} to {size_text(high)}"

    def described(self, value: float) -> str:
        return size_text(int(value))

    def parse(self, text: str) -> int | None:
        return bytes_of(text)

    def advice(self, value: object) -> str:
        return size_meant(value) if isinstance(value, str) else ""


class Memory(_OfText[str]):
    """Kind of limits for memory: a percentage of the available memory, or a number of bytes; 0 means no limit."""

    metavar = "BYTES|PERCENT"

    def parse(self, text: str, folder: str) -> str:
        match, size = _PERCENT.fullmatch(text), bytes_of(text)
        percent = float(match[1]) if match is not None else None
        if percent is None and size is None:
            what = "is neither a size, such as 500M or 4G, nor a part of the memory, such as 40%"
            raise ValueError(f"{brief(text)} {what}{size_meant(text)}")
        if percent is not None and not 1 <= percent <= 100:
            raise ValueError(f"{brief(text)} is out of range: give 1% to 100%")
        if size is not None and 0 < size < _LEAST_MEMORY:
            raise ValueError(f"{brief(text)} is out of range: give at least {_LEAST_MEMORY >> 20}M, or 0 for no limit")
        return text if size is None else str(size)


class Seconds(NumberKind):
    """Kind of times in seconds, or with units."""

    what = "a time: write a number of seconds, or 500ms, 30s, 2h, 7d, 1h30m"

    def __init__(self, low: float = 0, high: float | None = None, *, above: float = -math.inf) -> None:
        super().__init__(low, high, above=above, metavar="SECONDS")

    def parse(self, text: str) -> float | None:
        seconds = seconds_of(text)
        return super().parse(text) if seconds is None else seconds


class Keep(Kind[float]):
    """Kind of retention times, in seconds: 0 for ``settled``, infinite for ``forever``."""

    metavar = "DURATION"

    def read(self, value: object, folder: str = "") -> float:
        if value in ("settled", "forever"):
            return 0.0 if value == "settled" else math.inf
        seconds = seconds_of(value.strip()) if isinstance(value, str) else None
        if seconds is None:
            raise ValueError(f"{brief(value)} is not a duration: write 90s, 30m, 2h, 30d, 1w, or 1h30m")
        if seconds <= 0:
            raise ValueError(f"{brief(value)} is not a time to keep anything: write 7d, settled or forever")
        return seconds

    def shown(self, value: float) -> Any:
        if value in (0, math.inf):
            return "forever" if value else "settled"
        return f"{int(value)}s" if value == int(value) else f"{round(1000 * value)}ms"


class File(_OfText[Path]):
    """Kind of files."""

    metavar = "FILE"
    _types = (str,)

    def parse(self, text: str, folder: str) -> Path:
        if not text or "\0" in text:
            raise ValueError(f"{brief(text)} is not the name of a file")
        return Path(os.path.abspath(os.path.join(folder, text)))

    def shown(self, value: Path) -> Any:
        return str(value)


class FolderKind(File):
    """Kind of folders."""

    metavar = "FOLDER"


class Mode(_OfText[int]):
    """Kind of modes of a socket, in octal."""

    metavar = "MODE"

    def parse(self, text: str, folder: str) -> int:
        mode = int(text, 8) if len(text) in (3, 4) and set(text) <= set("01234567") else -1
        if mode & ~0o666 or mode & 0o600 != 0o600:
            raise ValueError(
                f"{brief(text)} is not the mode of a socket: write 0600, 0660 or 0666, in a file in quotes"
            )
        return mode

    def shown(self, value: int) -> Any:
        return f"{value:04o}"


class StoreKind(_OfText[str]):
    """Kind of stores: a URL, or a folder, which is converted to one."""

    metavar = "FOLDER|URL"
    _types = (str,)

    def parse(self, text: str, folder: str) -> str:
        if not text or "\0" in text:
            raise ValueError(f"{brief(text)} is not a store: give a folder, or a URL such as s3://bucket/prefix")
        return text if "://" in text else f"file://{quote(os.path.abspath(os.path.join(folder, text)))}"


class ListenAddress(_OfText[Listen]):
    """Kind of addresses to listen on for clients."""

    metavar = "ADDRESS"

    def parse(self, text: str, folder: str) -> Listen:
        return parse_listen(text, folder)

    def shown(self, value: Listen) -> Any:
        return f"unix:{os.path.abspath(value.path)}" if value.path else str(value)


class HostPort(_OfText[Listen]):
    """Kind of hosts with a port."""

    metavar = "HOST:PORT"

    def parse(self, text: str, folder: str) -> Listen:
        return parse_authority(text)

    def shown(self, value: Listen) -> Any:
        return value.authority


# ---------------------------------------------------------------------- units
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
    """Return the advice to write ``16M`` for ``16MB`` or ``16 MiB``; empty for other texts."""
    match = _SIZE_WITH_B.fullmatch(text.strip())
    return f"; do you mean {match[1]}{match[2].upper()}?" if match is not None else ""


def size_text(size: int) -> str:
    """Return a number of bytes in the form of :func:`bytes_of`, in the largest unit of which it is a multiple."""
    power = max(power for power in range(5) if size % (1 << 10 * power) == 0) if size else 0
    return f"{size >> 10 * power}{'KMGT'[power - 1] if power else ''}"
