"""Figures: distributions of a collection, and how honest probabilities are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pairingnet.evaluate.intervals import Estimate
from pairingnet.evaluate.metrics import Reliability
from pairingnet.evaluate.statistics import CollectionStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"High": "#d95f4c", "Medium": "#e3b23c", "Low": "#4c9f70"}
_BLUE = "#3b6ea5"
_METHOD_COLOURS = ("#3b6ea5", "#d95f4c", "#4c9f70", "#e3b23c", "#8c6bb1", "#7f7f7f", "#b0a18f")


def statistics_figure(statistics: CollectionStatistics, path: Path) -> None:
    """The paper's two dataset figures (areas, overlaps) beside the counts, as PNG, PDF or SVG."""
    figure = new_figure(13, 4.2)
    areas, overlaps, counts = figure.subplots(1, 3, width_ratios=[1, 1, 0.8])
    _histogram(areas, statistics.areas_px / 1000, "fragment area (1000 px²)", "fragments")
    areas.set_title("Areas")
    edges = np.linspace(0, max(0.01, float(statistics.overlap_ratios.max(initial=0))), 31)
    bottom = np.zeros(len(edges) - 1)
    for name, colour in _COLOURS.items():
        height, _ = np.histogram(statistics.overlap_ratios[statistics.difficulties == name], edges)
        share = height.sum() / max(1, len(statistics.overlap_ratios))
        overlaps.bar(
            edges[:-1],
            height,
            np.diff(edges),
            bottom,
            align="edge",
            color=colour,
            label=f"{name} ({share:.0%})",
        )
        bottom += height
    overlaps.set(xlabel="shared contour / shorter contour", ylabel="true pairs", title="Overlaps")
    overlaps.legend(title="difficulty", frameon=False)
    counts.axis("off")
    counts.set_title("Counts")
    rows = [[name, value] for name, value in statistics.counts().items()]
    table = counts.table(cellText=rows, loc="upper center", cellLoc="left", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.auto_set_column_width([0, 1])
    table.scale(1, 1.5)
    save_figure(figure, path)


def reliability_figure(table: Reliability, path: Path, title: str = "") -> None:
    """Predicted probability against what came true; on the diagonal it is honest."""
    figure = new_figure(4.6, 4.6)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--")
    axes.scatter(table.predicted, table.observed, s=_marker_sizes(table.counts), color=_BLUE, zorder=3)
    axes.plot(table.predicted, table.observed, color=_BLUE, linewidth=1)
    axes.set(xlabel="probability given", ylabel="share that is true", xlim=(0, 1), ylim=(0, 1), title=title)
    save_figure(figure, path)


def slices_figure(
    metrics: Mapping[str, Mapping[tuple[str, str], Estimate]],
    ms_per_pair: Mapping[tuple[str, str], float],
    path: Path,
) -> None:
    """Each metric by slice and method, with its interval, and below them the time that a pair takes."""
    slices = list(dict.fromkeys(name for name, _ in ms_per_pair))
    methods = list(dict.fromkeys(method for _, method in ms_per_pair))
    figure = new_figure(max(7.0, 2.5 + 1.3 * len(slices)), 3.2 * (len(metrics) + 1))
    rows = figure.subplots(len(metrics) + 1, 1, sharex=True, squeeze=False)[:, 0]
    wide = 0.8 / len(methods)
    for number, method in enumerate(methods):
        colour = _METHOD_COLOURS[number % len(_METHOD_COLOURS)]
        beside = (number - (len(methods) - 1) / 2) * wide
        for axes, told in zip(rows, metrics.values(), strict=False):
            there = [(place, told[name, method]) for place, name in enumerate(slices) if (name, method) in told]
            ends = [[e.value - e.low for _, e in there], [e.high - e.value for _, e in there]]
            axes.bar([place + beside for place, _ in there], [e.value for _, e in there], wide, color=colour)
            # Without an interval (one picture) there is no bar for it; percentiles may lie on the value itself.
            whiskers = np.nan_to_num(np.clip(np.array(ends).reshape(2, -1), 0, None))
            axes.errorbar(
                [place + beside for place, _ in there],
                [e.value for _, e in there],
                whiskers,
                fmt="none",
                ecolor="#333333",
                elinewidth=1,
            )
        taken = [ms_per_pair[name, method] for name in slices]
        rows[-1].bar([place + beside for place in range(len(slices))], taken, wide, color=colour, label=method)
    for axes, name in zip(rows, metrics, strict=False):
        axes.set(ylabel=name, ylim=(0, 1.05))
    rows[-1].set(ylabel="CPU ms a matched pair", yscale="log")
    rows[-1].set_xticks(range(len(slices)), slices, rotation=20, ha="right")
    figure.legend(loc="outside upper center", ncols=min(len(methods), 7), frameon=False)
    save_figure(figure, path)


def _histogram(axes: Axes, values: NDArray[np.float64], xlabel: str, ylabel: str) -> None:
    axes.hist(values, bins=40, color=_BLUE)
    axes.set(xlabel=xlabel, ylabel=ylabel)


def _marker_sizes(counts: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.asarray(20 + 160 * counts / max(1, counts.max(initial=1)))


def new_figure(width_in: float, height_in: float) -> Figure:
    """A figure that needs no screen and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    from pairingnet.errors import SettingsError

    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise SettingsError(f"{path} has no ending that a figure can have.", "Use .png, .pdf or .svg.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
