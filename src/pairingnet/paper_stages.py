"""The stages between pieces and joins, as the paper has them: local features and vectors, candidates by cosine, poses.

For `solve --method paper`. What `stages.py` does with our own network, this does with the paper's, and keeps it in the
same files of the run folder; poses of pairs are in `registered.jsonl` as well, in lines of their own form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from pairingnet import __version__
from pairingnet.config import RingSettings, SolveSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError
from pairingnet.io.arrays import SUFFIX, read_arrays, write_arrays
from pairingnet.io.collection import Collection
from pairingnet.io.files import append_lines, as_checked_line, read_checked_lines, write_json
from pairingnet.io.fingerprint import fingerprint
from pairingnet.io.manifest import Manifest
from pairingnet.io.run import match_as_json, match_from_json, read_joins, write_joins
from pairingnet.match.candidates import Candidates
from pairingnet.match.contact import Outline
from pairingnet.match.paper import PaperFeatures, PaperMethod
from pairingnet.match.paper_weights import PaperModel, load_paper
from pairingnet.models.device import one_thread
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.prepare.strip import working_step
from pairingnet.types import PairMatch

_CHUNK = 16  # fragments, or pairs, in a job
_READ = 300  # fragments that a process keeps, about a quarter of a MB each

Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class PaperJoins:
    """What is put together: the joins of all pairs that were laid on each other, and the contours at the step of the
    layout."""

    joins: Sequence[PairMatch]
    outlines: Mapping[str, Outline]
    step_px: float


@dataclass(frozen=True)
class _Source:
    """Where processes find what they need."""

    weights: Path
    mark: str
    features: Path
    device: str


def join_by_paper(
    collection: Collection,
    weights: Path,
    run: Path,
    settings: SolveSettings,
    manifest: Manifest,
    jobs: Workers = 0,
    device: str = "cpu",
) -> PaperJoins:
    """All joins that the paper's network finds; only what is missing is worked on."""
    model = load_paper(weights, device)
    model.check_complete()
    source = _Source(weights, model.mark, run / "features", device)
    made_of = {
        record.id: fingerprint("paper", __version__, source.mark, collection.fingerprint_of(record))
        for record in collection.fragments
    }
    manifest.note("features", fingerprint(sorted(made_of.items())), _make_features(collection, source, made_of, jobs))
    pairs = _pairs(model, source, list(made_of), settings)
    step_px = working_step([record.perimeter_px for record in collection.fragments], RingSettings().points)
    joins_made_of = fingerprint("paper joins", made_of, pairs)
    path, scale = run / "joins.jsonl", run / "scale.json"
    if not manifest.is_current("joins", joins_made_of):
        write_joins(path, _matched(pairs, source, made_of, run / "registered.jsonl", jobs))
        write_json(scale, {"step_px": step_px})
        manifest.note("joins", joins_made_of, [path, scale])
    return PaperJoins(read_joins(path), outlines_of(collection, step_px), step_px)


def outlines_of(collection: Collection, step_px: float) -> dict[str, Outline]:
    """The contours of all pieces, to be laid on each other."""
    return {each.id: Outline.at_step(each.contour, step_px) for each in load_fragments(collection)}


def _make_features(collection: Collection, source: _Source, made_of: Mapping[str, str], jobs: Workers) -> list[Path]:
    """Features of the fragments that have none; the files of all."""
    paths = {name: source.features / f"{name}{SUFFIX}" for name in made_of}
    missing = [name for name, path in paths.items() if read_arrays(path, made_of[name]) is None]
    parts = [collection.only(missing[first : first + _CHUNK]) for first in range(0, len(missing), _CHUNK)]
    # One process feeds a graphics card; several would only fight for it.
    workers = jobs if source.device == "cpu" else 1
    run_jobs(partial(_store_features, source, made_of), parts, workers, "features")
    return list(paths.values())


def _store_features(source: _Source, made_of: Mapping[str, str], part: Collection) -> None:
    with one_thread():
        for record in part.fragments:
            (each,) = _method(source).features([load_fragment(part, record.id)])
            arrays = {"points": each.points, "local": each.local.cpu().numpy(), "vector": each.vector}
            write_arrays(source.features / f"{record.id}{SUFFIX}", arrays, made_of[record.id])


def _pairs(model: PaperModel, source: _Source, ids: Sequence[str], settings: SolveSettings) -> list[Pair]:
    """All pairs of a small collection; of a large one the candidates whose vectors are most alike."""
    if len(ids) <= settings.all_pairs_up_to:
        return list(combinations(ids, 2))
    features = [_read(source, name) for name in ids]
    return Candidates(tuple(ids), *model.method().rank(features, settings.candidates)).pairs()


def _matched(
    pairs: Sequence[Pair], source: _Source, made_of: Mapping[str, str], path: Path, jobs: Workers
) -> list[PairMatch]:
    """All pairs, the likeliest first; each is kept as soon as it is known."""
    known = dict(_known(path))
    key_of = {pair: (made_of[pair[0]], made_of[pair[1]]) for pair in pairs}
    missing = [pair for pair, key in key_of.items() if key not in known]
    chunks = [missing[first : first + _CHUNK] for first in range(0, len(missing), _CHUNK)]

    def keep(found: Sequence[PairMatch]) -> None:
        keys = [key_of[match.source, match.target] for match in found]
        append_lines(path, [_line(key, match) for key, match in zip(keys, found, strict=True)])
        # What counts is what was stored, rounded: an interrupted run ends with the same numbers.
        known.update({key: match_from_json(match_as_json(match)) for key, match in zip(keys, found, strict=True)})

    run_jobs(partial(_match_chunk, source), chunks, jobs if source.device == "cpu" else 1, "matching", keep)
    joins = [known[key_of[pair]] for pair in pairs]
    return sorted(joins, key=lambda match: (-match.score, match.source, match.target))


def _match_chunk(source: _Source, pairs: Sequence[Pair]) -> list[PairMatch]:
    with one_thread():
        return [_method(source).match(_read(source, a), _read(source, b)) for a, b in pairs]


def _line(key: tuple[str, str], match: PairMatch) -> str:
    return as_checked_line({"made_of": key, "match": match_as_json(match)})


def _known(path: Path) -> Iterator[tuple[tuple[str, str], PairMatch]]:
    for entry in read_checked_lines(path).entries:
        source, target = entry["made_of"]
        yield (source, target), match_from_json(entry["match"])


@lru_cache(maxsize=1)
def _method(source: _Source) -> PaperMethod:
    model = load_paper(source.weights, source.device)
    if model.mark != source.mark:
        raise CollectionError(f"{source.weights} has changed while it was used.", "Run the command again.")
    return model.method()


@lru_cache(maxsize=_READ)
def _read(source: _Source, fragment_id: str) -> PaperFeatures:
    path = source.features / f"{fragment_id}{SUFFIX}"
    arrays = read_arrays(path)
    if arrays is None:
        raise CollectionError(f"{path} is missing or damaged.", "Run the command again: it makes it anew.")
    local = torch.from_numpy(np.array(arrays["local"])).to(source.device)
    return PaperFeatures(fragment_id, arrays["points"], local, arrays["vector"], None)
