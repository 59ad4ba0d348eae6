"""The curves of the page and the quantities at each point, from `curves.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Quantity:
    """A quantity at each point."""

    key: str
    title: str
    unit: str


@dataclass(frozen=True)
class Curve:
    """One size that grows."""

    key: str
    title: str
    axis: str
    text: str
    restarts: bool = True
    stores: bool = False


_TABLES = tomllib.loads(Path(__file__).with_name("curves.toml").read_text(encoding="utf-8"))
QUANTITIES = tuple(Quantity(key, title, unit) for key, (title, unit) in _TABLES["quantities"].items())
CURVES = tuple(Curve(key, **curve) for key, curve in _TABLES["curves"].items())
