"""The plot of a soak, as one small SVG that is legible on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from .flatness import WARM_UP, Verdict
from .run import Sample

_PANELS = {
    "memory_mib": "memory, MiB",
    "objects": "Python objects that have references",
    "blocks": "blocks of Python's allocator",
    "descriptors": "descriptors",
    "files": "files of the store",
    "segments": "payload segments",
    "disk_mib": "disk, MiB",
}
_INK, _LINE = "#7d8590", "#2f81f7"


def plot(samples: Sequence[Sample], verdicts: dict[str, Verdict], path: Path) -> None:
    """Write the series, each from 0, with the level after the warm-up, which is shaded."""
    days = [sample.hours / 24 for sample in samples]
    with mpl.rc_context({"svg.hashsalt": "soak", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}):
        figure = Figure(figsize=(7, 8), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(len(_PANELS), sharex=True), _PANELS.items(), strict=True):
            axes.plot(days, [getattr(sample, name) for sample in samples], color=_LINE, linewidth=1.2)
            axes.axhline(verdicts[name].level, color=_INK, linewidth=0.8, linestyle=":")
            axes.axvspan(0, days[int(len(days) * WARM_UP)], color=_INK, alpha=0.15, linewidth=0)
            axes.set_ylim(0, 1.25 * max(getattr(sample, name) for sample in samples))
            axes.set_title(title, loc="left", color=_INK, fontsize=9)
            axes.tick_params(colors=_INK)
            for side, spine in axes.spines.items():
                spine.set_visible(side in ("left", "bottom"))
                spine.set_color(_INK)
        axes.set_xlim(0, days[-1])
        axes.set_xlabel("virtual days", color=_INK)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
