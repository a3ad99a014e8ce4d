"""Scores of whole puzzles as a table: one line a puzzle, and the mean over all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isnan
from pathlib import Path

from pairingnet.errors import printable
from pairingnet.evaluate.puzzles import Puzzle, PuzzleScores, mean_scores, score_puzzle
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import write_whole

_HEADER = (
    "puzzle", "pieces", "placed", "Q_pos", "RMSE rotation, deg", "RMSE translation, mm",
    "neighbour precision", "neighbour recall",
)  # fmt: skip


@dataclass(frozen=True)
class PuzzleTable:
    """Scores by the name of the puzzle, and over all of them."""

    puzzles: Mapping[str, PuzzleScores]
    everything: PuzzleScores

    def as_markdown(self) -> str:
        """For a page, and for the eye."""
        rows = [[printable(name), *_cells(scores)] for name, scores in self._rows()]
        lines = ["| " + " | ".join(row) + " |" for row in (_HEADER, *rows)]
        return "\n".join([lines[0], "|---" * len(_HEADER) + "|", *lines[1:]])

    def as_csv(self) -> str:
        """For a spreadsheet."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_HEADER)
        writer.writerows([name, *_cells(scores, nothing="")] for name, scores in self._rows())
        return text.getvalue()

    def as_json(self) -> str:
        """For a program; what cannot be told is null."""
        told = {name: _plain(scores) for name, scores in self.puzzles.items()}
        return json.dumps({"version": 1, "puzzles": told, "all": _plain(self.everything)}, indent=1)

    def _rows(self) -> list[tuple[str, PuzzleScores]]:
        return [*self.puzzles.items(), *([("all", self.everything)] if len(self.puzzles) > 1 else [])]


def score_puzzles(
    puzzles: Sequence[Puzzle], layouts: Sequence[Sequence[Mapping[str, Rigid2D]]], px_per_mm: float
) -> PuzzleTable:
    """The table of puzzles and the groups of poses that were found for each."""
    told = {p.name: score_puzzle(p, groups, px_per_mm) for p, groups in zip(puzzles, layouts, strict=True)}
    return PuzzleTable(told, mean_scores(list(told.values())))


def write_table(out: Path, name: str, table: PuzzleTable) -> None:
    """OUT/NAME.md, .csv and .json."""
    texts = {"md": f"{table.as_markdown()}\n", "csv": table.as_csv(), "json": f"{table.as_json()}\n"}
    for ending, text in texts.items():
        write_whole(out / f"{name}.{ending}", partial(Path.write_text, data=text, encoding="utf-8"))


def _cells(scores: PuzzleScores, nothing: str = "-") -> list[str]:
    values = (
        (scores.q_pos, 3), (scores.rmse_rotation_deg, 2), (scores.rmse_translation_mm, 2),
        (scores.neighbour_precision, 3), (scores.neighbour_recall, 3),
    )  # fmt: skip
    told = [nothing if isnan(value) else f"{value:.{digits}f}" for value, digits in values]
    return [str(scores.pieces), str(scores.placed), *told]


def _plain(scores: PuzzleScores) -> dict[str, float | None]:
    return {name: None if isnan(value) else value for name, value in asdict(scores).items()}
