"""The paper's figures: what a method answered, to look at. Made from stored predictions, or from plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.assembly.canvas import compose
from pairingnet.evaluate.metrics import DIFFICULTIES, MatchErrors, by_difficulty
from pairingnet.evaluate.plots import new_figure, save_figure
from pairingnet.evaluate.predictions import Predictions
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.prepare.load import load_fragment
from pairingnet.types import Fragment, Pixels, TruePair

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREEN, _RED = "#1a9850", "#d73027"
_COLOURS = ("#3b6ea5", "#d95f4c", "#4c9f70", "#e3b23c", "#8c6bb1", "#7f7f7f")


# Errors and time -----------------------------------------------------------------------------------------------------


def violins(errors: Mapping[str, Sequence[MatchErrors]], difficulties: Sequence[str], path: Path) -> None:
    """Distributions of RE, NTE and HD of each method over all pairs, and of HD in each difficulty."""
    figure = new_figure(15, 7.5)
    upper, lower = figure.subplots(2, 3)
    measures: dict[str, Any] = {
        "RE (rad)": lambda e: e.rotation_rad,
        "NTE (1e-4)": lambda e: 1e4 * e.translation_normed,
        "HD (px)": lambda e: e.hausdorff_px,
    }
    for axes, (name, value) in zip(upper, measures.items(), strict=True):
        _violin(axes, {method: [value(e) for e in each] for method, each in errors.items()}, name)
    groups = by_difficulty(difficulties)
    for axes, level in zip(lower, DIFFICULTIES[1:], strict=True):
        chosen = {method: [each[i].hausdorff_px for i in groups[level]] for method, each in errors.items()}
        _violin(axes, chosen, f"HD (px), {level.lower()} difficulty")
    save_figure(figure, path)


def _violin(axes: Axes, values: Mapping[str, Sequence[float]], title: str) -> None:
    axes.set_title(title)
    kept = {name: np.asarray(each, dtype=float) for name, each in values.items() if len(each)}
    if kept:
        drawn: Any = axes.violinplot(list(kept.values()), showmedians=True, showextrema=False, widths=0.8)
        for body, colour in zip(drawn["bodies"], _COLOURS * len(kept), strict=False):
            body.set(facecolor=colour, alpha=0.75)
        drawn["cmedians"].set(color="black")
        for place, each in enumerate(kept.values(), start=1):
            axes.plot([place, place], np.percentile(each, [25, 75]), color="black", linewidth=3, alpha=0.6)
    axes.set_xticks(range(1, len(kept) + 1), list(kept))
    axes.set_ylim(bottom=0)


def time_chart(seconds: Mapping[str, Mapping[str, float]], counts: str, path: Path) -> None:
    """Seconds of each method, stage by stage (features, search, matching)."""
    figure = new_figure(9, 1.6 + 0.6 * len(seconds))
    axes = figure.subplots()
    names = list(seconds)
    left = np.zeros(len(names))
    for stage, colour in zip(("features", "search", "matching"), _COLOURS, strict=False):
        width = np.array([seconds[name].get(stage, 0.0) for name in names])
        axes.barh(names, width, left=left, color=colour, label=stage)
        left += width
    for place, total in enumerate(left):
        axes.text(total, place, f"  {total:.1f} s", va="center")
    axes.set(xlabel="seconds", title=f"Inference time, {counts}", xlim=(0, 1.15 * max(1e-9, left.max(initial=0))))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower right")
    save_figure(figure, path)


# Pictures of answers -------------------------------------------------------------------------------------------------


def search_sheet(
    collection: Collection, predictions: Predictions, queries: Sequence[str], path: Path, most: int = 8
) -> None:
    """Each query and its best candidates; true neighbours have a green box."""
    number = {name: i for i, name in enumerate(predictions.ids)}
    neighbours = _neighbours(collection)
    figure = new_figure(1.5 * (most + 1.2), 1.65 * len(queries))
    grid = figure.subplots(len(queries), most + 1, squeeze=False)
    for row, query in zip(grid, queries, strict=True):
        found = [predictions.ids[i] for i in predictions.ranked[number[query], :most] if i >= 0]
        _show(row[0], load_fragment(collection, query).on_paper(), f"{query}\n{len(neighbours[query])} neighbours")
        for axes in row[1:]:
            axes.axis("off")
        for place, (axes, name) in enumerate(zip(row[1:], found, strict=False), start=1):
            true = name in neighbours[query]
            _show(axes, load_fragment(collection, name).on_paper(), str(place), _GREEN if true else None)
    save_figure(figure, path)


def pair_sheet(
    collection: Collection, answers: Mapping[str, Predictions], pairs: Sequence[TruePair], path: Path
) -> None:
    """Each pair: both pieces, what each method made of them, and the truth."""
    columns = ["source", "target", *answers, "truth"]
    figure = new_figure(2.4 * len(columns), 2.3 * len(pairs))
    grid = figure.subplots(len(pairs), len(columns), squeeze=False)
    for row, pair in zip(grid, pairs, strict=True):
        source, target = load_fragment(collection, pair.source), load_fragment(collection, pair.target)
        _show(row[0], source.on_paper(), f"{pair.difficulty}\n{pair.source}")
        _show(row[1], target.on_paper(), pair.target)
        for axes, (name, predictions) in zip(row[2:], answers.items(), strict=False):
            found = predictions.transforms.get((pair.source, pair.target))
            _show_joined(axes, source, target, found, name)
        _show_joined(row[-1], source, target, collection.target_from_source(pair), "truth")
    save_figure(figure, path)


def correspondence_sheet(
    pairs: Sequence[tuple[Fragment, Fragment, NDArray[np.float64], NDArray[np.bool_]]], path: Path, most: int = 120
) -> None:
    """Pairs side by side, their corresponding points (K, 2, 2) joined by lines: green where right, red where not."""
    columns = min(2, len(pairs))
    rows = -(-len(pairs) // columns)
    figure = new_figure(7.5 * columns, 4.2 * rows)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (source, target, points, right) in zip(cells, pairs, strict=False):
        both, shift = _side_by_side(source, target)
        share = f"{right.mean():.0%} of {len(right)} right" if len(right) else "no correspondences"
        _show(axes, both, f"{source.id}, {target.id}: {share}")
        chosen = np.linspace(0, len(points) - 1, min(most, len(points))).astype(int)
        for i in chosen[np.argsort(right[chosen], kind="stable")]:  # the right ones on top
            (x0, y0), (x1, y1) = points[i]
            axes.plot([x0, x1 + shift], [y0, y1], color=_GREEN if right[i] else _RED, linewidth=0.6, alpha=0.8)
    for axes in cells[len(pairs) :]:
        axes.axis("off")
    save_figure(figure, path)


def gate_sheet(fragments: Sequence[tuple[Fragment, Points, NDArray[np.float32]]], path: Path) -> None:
    """Contours painted with the gate's mean weight (N,): red where texture counts more, green where contour does."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("gate", [_GREEN, "#f7f7c8", _RED])
    weights = np.concatenate([weight for _, _, weight in fragments])
    low, high = np.percentile(weights, [2, 98])
    columns = min(4, len(fragments))
    rows = -(-len(fragments) // columns)
    figure = new_figure(3.4 * columns + 0.8, 3.4 * rows)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    drawn: Any = None
    for axes, (fragment, points, weight) in zip(cells, fragments, strict=False):
        _show(axes, fragment.on_paper(), fragment.id)
        drawn = axes.scatter(points[:, 0], points[:, 1], c=weight, cmap=colours, vmin=low, vmax=high, s=7)
    for axes in cells[len(fragments) :]:
        axes.axis("off")
    figure.colorbar(drawn, ax=list(cells), label="weight of texture\n(red) and contour (green)", shrink=0.7)
    save_figure(figure, path)


def sphere(positions: NDArray[np.float64], pairs: Sequence[tuple[int, int]], path: Path) -> None:
    """Search vectors on a sphere (F, 3); the two of a pair have one colour and a line between them."""
    from matplotlib import colormaps

    figure = new_figure(8, 8)
    axes: Any = figure.add_subplot(projection="3d")
    paired = {i for pair in pairs for i in pair}
    others = [i for i in range(len(positions)) if i not in paired]
    axes.scatter(*positions[others].T, color="#cccccc", s=4, depthshade=True)
    for place, (a, b) in enumerate(pairs):
        colour = colormaps["hsv"](place / max(1, len(pairs)))
        axes.scatter(*positions[[a, b]].T, color=colour, s=40, edgecolors="black", linewidths=0.4)
        axes.plot(*positions[[a, b]].T, color=colour, linewidth=0.8, alpha=0.6)
    axes.set(xticks=[], yticks=[], zticks=[])
    axes.set_box_aspect((1, 1, 1))
    axes.set_title(f"{len(positions)} search vectors; {len(pairs)} pairs coloured")
    save_figure(figure, path)


def input_sheet(rows: Sequence[tuple[str, Mapping[str, Pixels]]], path: Path) -> None:
    """What the network sees of fragments: one row each, one named picture per kind of input."""
    columns = max(len(pictures) for _, pictures in rows)
    figure = new_figure(2.2 * columns, 2.4 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for cells, (name, pictures) in zip(grid, rows, strict=True):
        for axes, (kind, picture) in zip(cells, pictures.items(), strict=False):
            _show(axes, picture, f"{name}\n{kind}" if axes is cells[0] else kind)
    save_figure(figure, path)


# Which ones are shown ------------------------------------------------------------------------------------------------


def spread_queries(collection: Collection, count: int) -> list[str]:
    """Fragments with neighbours, evenly from the whole collection."""
    known = _neighbours(collection)
    names = [record.id for record in collection.fragments if known[record.id]]
    return [names[i] for i in _spread(len(names), count)]


def spread_pairs(collection: Collection, each: int) -> list[TruePair]:
    """`each` pairs of every difficulty, evenly from the whole collection, low difficulty first."""
    chosen = []
    for level in reversed(DIFFICULTIES[1:]):
        pairs = [pair for pair in collection.pairs if pair.difficulty == level]
        chosen += [pairs[i] for i in _spread(len(pairs), each)]
    return chosen


def disjoint_pairs(collection: Collection, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Up to `count` true pairs, as fragment numbers, no fragment in two of them."""
    number = {record.id: i for i, record in enumerate(collection.fragments)}
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for i in rng.permutation(len(collection.pairs)):
        a, b = number[collection.pairs[i].source], number[collection.pairs[i].target]
        if len(pairs) < count and not {a, b} & taken:
            pairs.append((a, b))
            taken |= {a, b}
    return pairs


def _spread(length: int, count: int) -> list[int]:
    return [int(i) for i in np.unique(np.linspace(0, length - 1, min(count, length)).astype(int))]


def _neighbours(collection: Collection) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {record.id: set() for record in collection.fragments}
    for pair in collection.pairs:
        found[pair.source].add(pair.target)
        found[pair.target].add(pair.source)
    return found


# Pieces of pictures --------------------------------------------------------------------------------------------------


def _show(axes: Axes, picture: Pixels, title: str = "", box: str | None = None) -> None:
    axes.imshow(picture)
    axes.set_axis_on()
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=8, color=box or "black")
    for spine in axes.spines.values():
        spine.set(visible=box is not None, color=box or "black", linewidth=3)


def _show_joined(axes: Axes, source: Fragment, target: Fragment, found: Rigid2D | None, title: str) -> None:
    if found is None:
        axes.axis("off")
        axes.set_title(f"{title}: none found", fontsize=8)
        return
    _show(axes, compose([(target, Rigid2D()), (source, found)]).pixels, title)


def _side_by_side(source: Fragment, target: Fragment, gap_px: int = 30) -> tuple[Pixels, int]:
    """Both pieces in one picture, and how far the target was moved to the right."""
    left, right = source.on_paper(), target.on_paper()
    shift = left.shape[1] + gap_px
    both = np.full((max(len(left), len(right)), shift + right.shape[1], 3), 255, dtype=np.uint8)
    both[: len(left), : left.shape[1]] = left
    both[: len(right), shift:] = right
    return both, shift
