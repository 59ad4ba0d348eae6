"""The pictures of a run, as SVG in a light and a dark variant, whose backgrounds are transparent.

What is ours has a colour that everyone can tell from the peers' grey; which bar is whose is written beside it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from . import shapes
from .curve_rows import CURVES, QUANTITIES, Curve
from .report import Picture
from .results import Results
from .targets import OURS, ROWS, TITLES, Row
from .workloads import COMPARED

COLUMNS = 3
_PANEL_WIDTH, _BAR_HEIGHT, _CURVE_HEIGHT = 4.2, 0.24, 2.1
"""Inches."""

#: characters of a line of a title
_TITLE_WIDTH = 38


@dataclass(frozen=True)
class Theme:
    """The colours of a variant; the blues are those of Okabe and Ito's palette."""

    name: str
    text: str
    lines: str
    ours: str
    peers: str


THEMES = (
    Theme("light", text="#24292f", lines="#d0d7de", ours="#0072b2", peers="#a8adb3"),
    Theme("dark", text="#d7dde3", lines="#444c56", ours="#56b4e9", peers="#6e7681"),
)


def draw(results: Results, folder: Path) -> list[Picture]:
    """Draw all measurements; pictures of an earlier run in this folder are removed."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*-light.svg"):
        old.unlink()
        old.with_name(old.name.replace("-light", "-dark")).unlink(missing_ok=True)
    return [_saved(picture, paint, folder) for picture, paint in _pictures(results)]


Paint = Callable[[Theme], Figure]


def _pictures(results: Results) -> Iterator[tuple[Picture, Paint]]:
    for name, text, keys, units in (
        ("compared", "The rates of all brokers", COMPARED, "/s"),
        ("shapes", "The rates with other messages and queues", shapes.COMPARED, "/s"),
        (
            "peers-backlog",
            "Each broker with 1,000,000 waiting messages: rates, memory, disk and restart",
            ("peers_backlog",),
            "",
        ),
    ):
        rows = [row for row in ROWS if row.workload in keys and row.unit.endswith(units)]
        measured = [row for row in rows if any(results.of(row.key, peer) for peer in TITLES)]
        if measured:
            yield Picture(name, text), partial(_bars, results, measured)
    for curve in CURVES:
        if any(key == curve.key for key, _quantity in results.points):
            picture = Picture(f"curve-{curve.key}", f"By the number of {curve.axis}")
            yield picture, partial(_curve, results, curve)


def _saved(picture: Picture, paint: Paint, folder: Path) -> Picture:
    for theme in THEMES:
        style: Any = {
            "svg.fonttype": "none",
            "svg.hashsalt": picture.name,  # the same input gives the same bytes
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 9,
            "axes.titlesize": 9.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": theme.lines,
            "grid.color": theme.lines,
            "grid.linewidth": 0.6,
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.text),
        }
        with matplotlib.rc_context(style):
            metadata = {"Date": None, "Creator": None, "Title": picture.text}
            paint(theme).savefig(folder / f"{picture.name}-{theme.name}.svg", transparent=True, metadata=metadata)
    return picture


def _panels(count: int, height: float, heights: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of `COLUMNS`."""
    rows = math.ceil(count / COLUMNS)
    figure = Figure(
        figsize=(_PANEL_WIDTH * min(count, COLUMNS), height), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08)
    )
    axes = figure.subplots(rows, min(count, COLUMNS), squeeze=False, height_ratios=heights)
    for unused in list(axes.flat)[count:]:
        unused.set_visible(False)
    return figure, list(axes.flat)[:count]


# ------------------------------------------------------------ bars
def _bars(results: Results, rows: Sequence[Row], theme: Theme) -> Figure:
    """A panel for each row, with a bar for each broker."""
    measured = {row.key: [name for name in TITLES if results.of(row.key, name)] for row in rows}
    groups = [rows[start : start + COLUMNS] for start in range(0, len(rows), COLUMNS)]
    heights = [0.9 + _BAR_HEIGHT * max(len(measured[row.key]) for row in group) for group in groups]
    figure, axes = _panels(len(rows), sum(heights), heights)
    for row, panel in zip(rows, axes, strict=True):
        names = measured[row.key]
        values = [median(results.of(row.key, name)) for name in names]
        colours = [theme.ours if name == OURS else theme.peers for name in names]
        bars = panel.barh([TITLES[name].replace("`", "") for name in names], values, color=colours, height=0.7)
        panel.bar_label(bars, [_short(value) for value in values], padding=3)
        panel.set_title(_wrapped(row.work), loc="left")
        panel.set_xlabel(row.unit)
        panel.invert_yaxis()
        panel.margins(x=0.22)
        panel.tick_params(length=0)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: _short(value)))
        panel.grid(axis="x")
        panel.set_axisbelow(True)
    return figure


# ------------------------------------------------------------ curves
def _curve(results: Results, curve: Curve, theme: Theme) -> Figure:
    """A panel for each quantity: the medians, and the range of the samples."""
    quantities = [one for one in QUANTITIES if (curve.key, one.key) in results.points]
    figure, axes = _panels(len(quantities), _CURVE_HEIGHT * math.ceil(len(quantities) / COLUMNS))
    for quantity, panel in zip(quantities, axes, strict=True):
        points = sorted(results.points[curve.key, quantity.key].items())
        places = [_place(size, points) for size, _samples in points]
        lows, middles, highs = ([of(samples) for _size, samples in points] for of in (min, median, max))
        panel.fill_between(places, lows, highs, color=theme.ours, alpha=0.25, linewidth=0)
        panel.plot(places, middles, color=theme.ours, marker="o", markersize=4, clip_on=False)
        panel.set_title(quantity.title, loc="left")
        panel.set_ylabel(quantity.unit)
        panel.set_xticks(places, [_short(size) for size, _samples in points])
        panel.set_ylim(bottom=0, top=1.15 * max(highs) or 1)
        panel.yaxis.set_major_locator(MaxNLocator(4))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: _short(value)))
        panel.grid(axis="y")
    figure.supxlabel(f"{curve.axis} (log scale)", fontsize=9)
    return figure


def _place(size: int, points: Sequence[tuple[int, object]]) -> float:
    """The place of a size on a logarithmic axis; zero is a decade before the smallest other size."""
    return math.log10(size or min((one for one, _samples in points if one), default=1) / 10)


def _short(value: float) -> str:
    """A number of an axis: 12,500 and 1M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text.replace("`", ""), _TITLE_WIDTH)
