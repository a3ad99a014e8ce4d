"""Methods as the benchmark asks them: one small protocol for whole systems, networks and rules of thumb.

Three ways to search are told apart by one number and one list only: `judged` says whether candidates are laid on each
other and ranked by that, and `candidates` gives as many as are worth it. A method that knows nothing of two
pieces before laying them gives all others, with a score of minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from pairingnet.config import BenchmarkSettings
from pairingnet.engine.local import progress_bar
from pairingnet.errors import SettingsError
from pairingnet.evaluate.predictions import Method, Pair
from pairingnet.io.collection import Collection
from pairingnet.match.candidates import Candidates
from pairingnet.prepare.load import load_fragments
from pairingnet.types import Assembly, PairMatch

if TYPE_CHECKING:
    from pairingnet.match.paper_weights import PaperModel

RANKED = 50  # candidates that a ranking keeps
_HANDFUL = 16  # pairs that are stored at once

Laid = Callable[[Sequence[PairMatch]], None]


class Entrant(Protocol):
    """A method, with the collection it is asked about."""

    name: str
    judged: bool  # whether its search lays candidates on each other
    most: int  # candidates of each query

    def describe(self) -> dict[str, Any]:
        """Settings and weights, as plain values."""

    def know(self) -> None:
        """Make the features of all fragments, unless that was done."""

    def candidates(self, most: int) -> Candidates:
        """The best others of each fragment, as far as that can be known before any are laid on each other."""

    def lay(self, pairs: Sequence[Pair], laid: Laid) -> None:
        """Match pairs; `laid` gets each handful as soon as it is known."""

    def assemble(self, joins: Iterable[PairMatch]) -> tuple[list[PairMatch], Assembly] | None:
        """Groups of all fragments from the joins of its search, and what the groups make of the joins; None where the
        method does not say."""


@runtime_checkable
class Pairwise(Protocol):
    """A method that can only search by laying every pair on each other."""

    def score(self, source: Any, target: Any) -> float:
        """How well two pieces fit; 0 where they do not."""


class MethodEntrant:
    """Any method of the common protocol; its features are in memory, and made again after an interruption.

    searches: False where its ranking was never learned; it is asked about pairs only then, and ranks nobody.
    """

    def __init__(self, method: Method, collection: Collection, searches: bool = True) -> None:
        self.method, self.collection, self.searches = method, collection, searches
        self.name = method.name
        self.judged = isinstance(method, Pairwise)
        self.most = (max(1, len(collection) - 1) if self.judged else RANKED) if searches else 0
        self._features: Sequence[Any] | None = None
        self._number = {record.id: i for i, record in enumerate(collection.fragments)}

    def describe(self) -> dict[str, Any]:
        """The method's own words."""
        return {**self.method.describe(), **({} if self.searches else {"search": "not trained"})}

    def know(self) -> None:
        """All fragments, one after the other."""
        if self._features is None:
            with progress_bar() as bar:
                fragments = load_fragments(self.collection)
                shown = bar.track(fragments, total=len(self.collection), description=f"{self.name}: features")
                self._features = self.method.know(list(self.method.features(shown)))

    def candidates(self, most: int) -> Candidates:
        """The method's own ranking; all others where it has none."""
        assert self._features is not None
        ids = tuple(self._number)
        if not self.searches:
            nobody = np.zeros((len(ids), 0))
            return Candidates(ids, nobody.astype(np.intp), nobody.astype(np.float32))
        if self.judged:
            places = np.arange(max(0, len(ids) - 1))[None]
            others = places + (places >= np.arange(len(ids))[:, None])  # everyone but oneself
            return Candidates(ids, others, np.full(others.shape, -np.inf, dtype=np.float32))
        return Candidates(ids, *self.method.rank(self._features, most))

    def lay(self, pairs: Sequence[Pair], laid: Laid) -> None:
        """One after the other; points of the seams are not kept."""
        assert self._features is not None
        with progress_bar() as bar:
            task = bar.add_task(f"{self.name}: pairs", total=len(pairs))
            for first in range(0, len(pairs), _HANDFUL):
                handful = pairs[first : first + _HANDFUL]
                found = [self.method.match(*(self._features[self._number[name]] for name in pair)) for pair in handful]
                laid([replace(match, points=np.zeros((0, 2, 2))) for match in found])
                bar.advance(task, len(handful))

    def assemble(self, joins: Iterable[PairMatch]) -> tuple[list[PairMatch], Assembly] | None:  # noqa: ARG002
        """These methods end with pairs."""
        return None


class RingEntrant:
    """Our own system: the stages of the pipeline, which keep what they make in the folder of the run."""

    name = "ring"
    judged = True

    def __init__(self, collection: Collection, weights: Path, folder: Path, most: int = 20, jobs: int = 1) -> None:
        self.collection, self.weights, self.folder, self.most, self.jobs = collection, weights, folder, most, jobs

    def describe(self) -> dict[str, Any]:
        """The mark of the weights, and how many candidates are laid on each other."""
        from pairingnet.io.resume import content_mark

        return {"weights": content_mark(self.weights), "candidates": self.most}

    def know(self) -> None:
        """Features in files; those that are there are read."""
        from pairingnet import stages

        source = stages.source_of(self.collection, self.weights, self.folder)
        features = stages.compute_features(self.collection, source, self.jobs)
        statistics, self._source = stages.statistics_of(features, source)
        self._features = [statistics.applied_to(each) for each in features]

    def candidates(self, most: int) -> Candidates:
        """By votes of contour points."""
        from pairingnet import stages

        return stages.find_candidates(self._features, self._source, most)

    def lay(self, pairs: Sequence[Pair], laid: Laid) -> None:
        """On several processes where asked for."""
        from pairingnet.match.many import match_many

        asked = [(a, b, None) for a, b in pairs]
        match_many(self._source, asked, self.jobs, lambda found: laid([match for _, match in found]))

    def assemble(self, joins: Iterable[PairMatch]) -> tuple[list[PairMatch], Assembly]:
        """As `solve` does, with its settings."""
        from pairingnet import stages
        from pairingnet.assembly.layout import lay_out

        joins, outlines = list(joins), {each.id: each.outline for each in self._features}
        judge = stages.guided_by(self._source, joins, self._features)
        return lay_out(outlines, joins, self._source.step_px, judge=judge)


@dataclass(frozen=True)
class Given:
    """What methods need beside a collection: weights of our own network (None: those that ship) and of JigsawNet, and a
    way to load the paper's network (None: the one that ships)."""

    ring: Path | None = None
    jigsaw: Path | None = None
    paper: Callable[[], PaperModel] | None = None


Maker = Callable[[Collection, Path, Given, BenchmarkSettings, int], Entrant]


def make_entrant(
    name: str, collection: Collection, folder: Path, given: Given, settings: BenchmarkSettings, jobs: int = 1
) -> Entrant:
    """The method of a name, ready to be asked about a collection; what it keeps lies in `folder`."""
    return MAKERS[name](collection, folder, given, settings, jobs)


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no method has."""
    unknown = [name for name in names if name not in MAKERS]
    if unknown:
        raise SettingsError(f"There is no method '{', '.join(unknown)}'.", f"They are: {', '.join(MAKERS)}.")


def check_weights(names: Sequence[str], given: Given) -> None:
    """Refuse methods whose weights are not given."""
    if "jigsawnet" in names and given.jigsaw is None:
        raise SettingsError(
            "No weights ship for jigsawnet.", "Train it, and give --jigsaw-weights FILE; or leave it out."
        )


# Each imports what it needs when it is asked for: a ranking at random loads no network.


def _ring(collection: Collection, folder: Path, given: Given, settings: BenchmarkSettings, jobs: int) -> Entrant:
    from pairingnet.match.weights import SHIPPED

    return RingEntrant(collection, given.ring or SHIPPED, folder, settings.candidates, jobs)


def _of_method(
    make: Callable[[Collection, Given, BenchmarkSettings], Method],
    collection: Collection,
    folder: Path,  # noqa: ARG001
    given: Given,
    settings: BenchmarkSettings,
    jobs: int,  # noqa: ARG001
) -> Entrant:
    return MethodEntrant(make(collection, given, settings), collection)


def _paper(
    collection: Collection,
    folder: Path,  # noqa: ARG001
    given: Given,
    settings: BenchmarkSettings,  # noqa: ARG001
    jobs: int,  # noqa: ARG001
) -> Entrant:
    from pairingnet.match.paper_weights import load_paper

    model = load_paper() if given.paper is None else given.paper()
    return MethodEntrant(model.method(), collection, model.searches)


def _rule_based(_: Collection, __: Given, ___: BenchmarkSettings) -> Method:
    from pairingnet.baselines.rule_based import RuleBasedMethod

    return RuleBasedMethod()


def _jigsawnet(_: Collection, given: Given, __: BenchmarkSettings) -> Method:
    from pairingnet.baselines.jigsawnet import JigsawMethod
    from pairingnet.baselines.weights import load_jigsaw
    from pairingnet.io.resume import content_mark

    assert given.jigsaw is not None
    return JigsawMethod(load_jigsaw(given.jigsaw), weights=content_mark(given.jigsaw))


def _mean_colour(_: Collection, __: Given, ___: BenchmarkSettings) -> Method:
    from pairingnet.baselines.mean_colour import MeanColourMethod

    return MeanColourMethod()


def _same_picture(collection: Collection, _: Given, settings: BenchmarkSettings) -> Method:
    from pairingnet.baselines.same_picture import SamePictureMethod

    return SamePictureMethod({record.id: record.source for record in collection.fragments}, settings.seed)


def _chance(_: Collection, __: Given, settings: BenchmarkSettings) -> Method:
    from pairingnet.baselines.chance import ChanceMethod

    return ChanceMethod(settings.seed)


MAKERS: Mapping[str, Maker] = {
    "ring": _ring,
    "paper": _paper,
    "rule_based": partial(_of_method, _rule_based),
    "jigsawnet": partial(_of_method, _jigsawnet),
    "mean_colour": partial(_of_method, _mean_colour),
    "same_picture": partial(_of_method, _same_picture),
    "chance": partial(_of_method, _chance),
}
