"""The paper's two ablation tables: every row as a named configuration, trained and judged under one budget.

A configuration is what differs from the preset. Rows that only change the search encoder share the preset's first
training step. Each configuration has its own folder, so that an interrupted table continues, and several
processes can share the work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pairingnet.benchmark.ask import predict
from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.errors import SettingsError
from pairingnet.evaluate.scores import score, short_number
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_json
from pairingnet.io.resume import content_mark, remember_settings
from pairingnet.match.paper import PaperMethod
from pairingnet.settings import network_and_training, with_values
from pairingnet.train.checkpoints import network_of, read_checkpoint
from pairingnet.train.data import PairData
from pairingnet.train.loop import train
from pairingnet.train.matching import MatchingTask, fresh_network
from pairingnet.train.searching import DEFAULTS, SearchingTask, with_search_encoder

PRESET = "preset"
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    PRESET: {},
    "encoding-inside": {"encoding": "inside"},
    "encoding-both": {"encoding": "both"},
    "patch-3": {"patch": 3},
    "patch-11": {"patch": 11},
    "resgcn-10": {"layers": 10},
    "resgcn-18": {"layers": 18},
    "transformer-3": {"search_layers": 3},
    "transformer-4": {"search_layers": 4},
    "fusion-early": {"fusion": "early"},
    "fusion-concat": {"fusion": "concat"},
    "search-add": {"search_fusion": "add"},
    "focal-0.25-4": {"beta1": 0.25, "gamma": 4.0},
    "focal-0.4-6": {"beta1": 0.4, "gamma": 6.0},
    "temperature-0.07": {"temperature": 0.07},
    "temperature-0.2": {"temperature": 0.2},
    "contour": {"branches": "contour"},
    "texture": {"branches": "texture"},
    "grey-texture": {"branches": "texture", "texture": "grey"},
    "grey": {"texture": "grey"},
    "canny-texture": {"branches": "texture", "texture": "canny"},
    "canny": {"texture": "canny"},
    "unet": {"backbone": "unet"},
    "search-fused": {"search_input": "fused"},
}
# Those of the table in the paper itself: fusion way, layers, feature modality; the others are in its supplement.
MAIN = (
    PRESET, "fusion-early", "fusion-concat", "resgcn-10", "resgcn-18", "transformer-3", "transformer-4",
    "contour", "texture",
)  # fmt: skip
METRICS = ("R@5", "R@10", "R@20", "NDCG@5", "NDCG@10", "NDCG@20", "RR", "HD", "RE", "NTE e-4")
_SEARCH, _MATCH = METRICS[:6], METRICS[6:]


@dataclass(frozen=True)
class Row:
    """One row of the paper's tables: its group and label, the configuration, and the numbers printed there."""

    group: str
    label: str
    configuration: str
    searching: tuple[float, ...] = ()  # the first six metrics, where the paper gives them
    matching: tuple[float, ...] = ()  # the last four

    @property
    def printed(self) -> dict[str, float]:
        return dict(zip(_SEARCH, self.searching, strict=False)) | dict(zip(_MATCH, self.matching, strict=False))


_S = (0.493, 0.608, 0.714, 0.417, 0.458, 0.487)  # the paper's own final configuration
_M = (0.835, 43.180, 0.352, 7.735)
ROWS = (
    Row("contour encoding", "(1) edge", PRESET, (), _M),
    Row("contour encoding", "(2) inside-outside", "encoding-inside", (), (0.695, 75.423, 0.576, 13.716)),
    Row("contour encoding", "(3) both", "encoding-both", (), (0.671, 84.982, 0.641, 15.078)),
    Row("patch size", "3 x 3", "patch-3", (), (0.714, 72.477, 0.566, 13.291)),
    Row("patch size", "7 x 7", PRESET, (), _M),
    Row("patch size", "11 x 11", "patch-11", (), (0.663, 84.751, 0.649, 15.306)),
    Row("ResGCN layers", "10", "resgcn-10", (), (0.680, 81.163, 0.610, 14.847)),
    Row("ResGCN layers", "14", PRESET, (), _M),
    Row("ResGCN layers", "18", "resgcn-18", (), (0.759, 62.51, 0.484, 11.165)),
    Row("transformer layers", "3", "transformer-3", (0.488, 0.600, 0.697, 0.410, 0.450, 0.476)),
    Row("transformer layers", "4", "transformer-4", (0.488, 0.606, 0.711, 0.411, 0.452, 0.481)),
    Row("transformer layers", "5", PRESET, _S),
    Row("fusion", "early", "fusion-early", (0.448, 0.559, 0.672, 0.376, 0.413, 0.446), (0.658, 85.558, 0.636, 15.547)),
    Row("fusion", "concat", "fusion-concat", (0.489, 0.605, 0.706, 0.418, 0.458, 0.486), (0.824, 45.521, 0.359, 8.269)),
    Row("fusion", "weighted", PRESET, _S, _M),
    Row("fusion in searching", "addition", "search-add", (0.489, 0.605, 0.706, 0.418, 0.459, 0.486)),
    Row("fusion in searching", "concatenation", PRESET, _S),
    Row("focal loss", "β₁ 0.25, γ 4", "focal-0.25-4", (), (0.514, 124.88, 0.886, 21.972)),
    Row("focal loss", "β₁ 0.4, γ 6", "focal-0.4-6", (), (0.752, 65.181, 0.505, 11.631)),
    Row("focal loss", "β₁ 0.55, γ 8", PRESET, (), _M),
    Row("InfoNCE temperature", "0.07", "temperature-0.07", (0.485, 0.593, 0.692, 0.413, 0.451, 0.478)),
    Row("InfoNCE temperature", "0.12", PRESET, _S),
    Row("InfoNCE temperature", "0.2", "temperature-0.2", (0.474, 0.579, 0.679, 0.394, 0.430, 0.457)),
    Row(
        "modality, RGB",
        "contour",
        "contour",
        (0.016, 0.025, 0.049, 0.013, 0.016, 0.023),
        (0.584, 122.953, 0.846, 19.806),
    ),
    Row(
        "modality, RGB",
        "texture",
        "texture",
        (0.479, 0.597, 0.705, 0.394, 0.436, 0.466),
        (0.657, 85.438, 0.684, 15.872),
    ),
    Row("modality, RGB", "both", PRESET, _S, _M),
    # Contour patches are binary: contour alone is the same network whatever the texture; it is run once.
    Row(
        "modality, grey",
        "contour",
        "contour",
        (0.018, 0.032, 0.053, 0.013, 0.019, 0.025),
        (0.535, 138.238, 0.942, 22.314),
    ),
    Row(
        "modality, grey",
        "texture",
        "grey-texture",
        (0.258, 0.355, 0.470, 0.205, 0.240, 0.271),
        (0.633, 94.706, 0.700, 17.147),
    ),
    Row("modality, grey", "both", "grey", (0.281, 0.379, 0.487, 0.226, 0.261, 0.291), (0.833, 44.917, 0.365, 7.738)),
    Row(
        "modality, binarised",
        "contour",
        "contour",
        (0.086, 0.124, 0.184, 0.069, 0.083, 0.100),
        (0.562, 126.609, 0.857, 20.459),
    ),
    Row(
        "modality, binarised",
        "texture",
        "canny-texture",
        (0.027, 0.048, 0.082, 0.019, 0.027, 0.037),
        (0.000, 232.263, 1.562, 42.034),
    ),
    Row(
        "modality, binarised",
        "both",
        "canny",
        (0.036, 0.051, 0.083, 0.029, 0.034, 0.043),
        (0.553, 127.997, 0.888, 21.072),
    ),
    Row("backbone", "Graph U-Nets", "unet", (), (0.629, 97.111, 0.744, 17.001)),
    Row("searching on", "matching features", "search-fused", (0.434, 0.535, 0.632, 0.358, 0.392, 0.419)),
)


@dataclass(frozen=True)
class Budget:
    """The same for every configuration: steps and pairs a step of both trainings, and their seed."""

    steps: int = 150
    batch: int = 4
    search_steps: int = 20
    search_batch: int = 48
    seed: int = 0


def ablate(
    training: Collection, judged: Collection, out: Path, budget: Budget, names: Iterable[str], device: torch.device
) -> None:
    """Train and judge the named configurations (all without names) that `out` does not hold yet."""
    chosen = list(names) or list(CONFIGURATIONS)
    unknown = [name for name in chosen if name not in CONFIGURATIONS]
    if unknown:
        raise SettingsError(
            f"There is no configuration {', '.join(unknown)}.", f"They are: {', '.join(CONFIGURATIONS)}."
        )
    remember_settings(out, "budget", {**asdict(budget), "training": training.mark, "judged": judged.mark})
    bench = _Bench(training, judged, out, budget, device)
    for name in chosen:
        bench.run(name)


def read_results(out: Path) -> dict[str, dict[str, float]]:
    """Metrics of every configuration that is done."""
    found = {}
    for name in CONFIGURATIONS:
        path = out / name / "result.json"
        if path.is_file():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def seed_folder(out: Path, seed: int) -> Path:
    """Where the trainings of one of several seeds are."""
    return out / f"seed-{seed}"


def read_seeds(out: Path, seeds: Sequence[int]) -> dict[str, list[dict[str, float]]]:
    """Metrics of every configuration, one mapping for each seed that has done it."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in seeds:
        for name, values in read_results(seed_folder(out, seed)).items():
            found.setdefault(name, []).append(values)
    return found


def seeds_as_markdown(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Groups of rows that are compared with each other: means over seeds, half of the spread between them, and whether
    the order of the means is the paper's."""
    compared = ("R@5", "NDCG@5", "RR")
    lines = ["| | | seeds | " + " | ".join(f"{name} | paper" for name in compared) + " |", "|---" * 9 + "|"]
    orders = []
    for group in dict.fromkeys(row.group for row in ROWS):
        rows = [row for row in ROWS if row.group == group and row.configuration in results]
        if len({row.configuration for row in rows}) < 2:
            continue
        for row in rows:
            told = results[row.configuration]
            cells = [cell for name in compared for cell in (_spread(told, name), _cells_of(row.printed, name))]
            lines.append(f"| {group} | {row.label} | {len(told)} | " + " | ".join(cells) + " |")
        orders += [order for name in compared if (order := _order(rows, results, name))]
    return "\n".join([*lines, "", *orders])


def _spread(told: Sequence[Mapping[str, float]], name: str) -> str:
    """`0.412 ± 0.020`: the mean, and half the difference between the largest and the smallest."""
    values = [each[name] for each in told if name in each]
    if not values:
        return "-"
    return f"{np.mean(values):.3f}" + (f" ± {(max(values) - min(values)) / 2:.3f}" if len(values) > 1 else "")


def _cells_of(values: Mapping[str, float], name: str) -> str:
    return short_number(values.get(name, float("nan")))


def _order(rows: Sequence[Row], results: Mapping[str, Sequence[Mapping[str, float]]], name: str) -> str:
    """How many pairs of rows stand as in the paper, of those that seeds tell apart: their ranges do not overlap."""
    ranges = {}
    for row in rows:
        values = [each[name] for each in results[row.configuration] if name in each]
        if values and name in row.printed:
            ranges[row.label] = (min(values), max(values), row.printed[name])
    pairs = [(a, b) for i, a in enumerate(ranges) for b in list(ranges)[i + 1 :]]
    apart = [(a, b) for a, b in pairs if ranges[a][1] < ranges[b][0] or ranges[b][1] < ranges[a][0]]
    alike = sum((ranges[a][0] > ranges[b][0]) == (ranges[a][2] > ranges[b][2]) for a, b in apart)
    if not pairs:
        return ""
    told = f"{len(apart)} of {len(pairs)} pairs of rows are told apart by the seeds, {alike} as in the paper"
    return f"- {rows[0].group}, {name}: {told}"


def as_markdown(results: Mapping[str, Mapping[str, float]]) -> str:
    """All rows, the numbers measured here and under them the paper's."""
    lines = ["| | | | " + " | ".join(METRICS) + " |", "|---" * (3 + len(METRICS)) + "|"]
    for row in ROWS:
        reported = row.printed
        cells = _cells({n: v for n, v in results.get(row.configuration, {}).items() if n in reported})
        lines.append(f"| {row.group} | {row.label} | here | " + " | ".join(cells) + " |")
        lines.append("| | | paper | " + " | ".join(_cells(reported)) + " |")
    return "\n".join(lines)


def as_csv(results: Mapping[str, Mapping[str, float]]) -> str:
    """One line per row and source (here, paper)."""
    lines = [",".join(["group", "label", "configuration", "source", *METRICS])]
    for row in ROWS:
        for source, values in (("here", results.get(row.configuration, {})), ("paper", row.printed)):
            cells = [f"{values[name]:.6g}" if name in values else "" for name in METRICS]
            lines.append(",".join([f'"{row.group}"', f'"{row.label}"', row.configuration, source, *cells]))
    return "\n".join(lines)


def _cells(values: Mapping[str, float]) -> list[str]:
    return [short_number(values.get(name, float("nan"))) for name in METRICS]


@dataclass(frozen=True, eq=False)
class _Bench:
    """Where configurations are run."""

    training: Collection
    judged: Collection
    out: Path
    budget: Budget
    device: torch.device

    def run(self, name: str) -> None:
        """Both training steps as far as the configuration's rows need them, then its scores."""
        folder = self.out / name
        if (folder / "result.json").is_file():
            return
        searched = any(row.searching for row in ROWS if row.configuration == name)
        checkpoint, seconds = self._matching(name)
        if searched:
            checkpoint, more = self._searching(name, checkpoint)
            seconds += more
        network = network_of(read_checkpoint(checkpoint)).to(self.device)
        method = PaperMethod(network, weights=content_mark(checkpoint))
        overall = score(self.judged, predict(self.judged, method, folder / "predictions"))[0]
        values = {n: v for n, v in overall.values.items() if n in METRICS and (searched or n in _MATCH)}
        write_json(folder / "result.json", {**values, "training_s": round(seconds, 1)})

    def _matching(self, name: str) -> tuple[Path, float]:
        """The checkpoint of step 1, and the seconds it took."""
        of_network, of_training = network_and_training(CONFIGURATIONS[name])
        if all(n.startswith(("search_", "temperature")) for n in CONFIGURATIONS[name]):
            name, of_network, of_training = PRESET, {}, {}
        settings = TrainSettings(steps=self.budget.steps, batch=self.budget.batch, seed=self.budget.seed)
        settings = with_values(settings, of_training)
        network = fresh_network(with_values(PaperSettings(), of_network), settings.seed).to(self.device)
        data = PairData(self.training, network.settings, settings.correspond, self.device)
        result = train(MatchingTask(network, data, settings), settings, self.out / name / "matching")
        return result.checkpoint, result.seconds

    def _searching(self, name: str, start: Path) -> tuple[Path, float]:
        """The checkpoint of step 2, and the seconds it took."""
        of_network, of_training = network_and_training(CONFIGURATIONS[name])
        settings = with_values(TrainSettings(seed=self.budget.seed), DEFAULTS)
        settings = replace(settings, steps=self.budget.search_steps, batch=self.budget.search_batch)
        settings = with_values(settings, of_training)
        of_search = {n: v for n, v in of_network.items() if n.startswith("search_")}
        network = with_search_encoder(read_checkpoint(start), of_search, settings.seed).to(self.device)
        data = PairData(self.training, network.settings, settings.correspond, self.device)
        result = train(SearchingTask(network, data, settings), settings, self.out / name / "searching")
        return result.checkpoint, result.seconds


def write_tables(out: Path, results: Mapping[str, Mapping[str, float]]) -> None:
    """Write the table as Markdown, CSV and JSON."""
    texts = {"md": as_markdown(results), "csv": as_csv(results), "json": json.dumps(results, indent=1)}
    for ending, text in texts.items():
        (out / f"ablations.{ending}").write_text(text + "\n", encoding="utf-8")
