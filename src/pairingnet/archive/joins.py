"""Which fragments of an archive were neighbours of a new one: votes of the index, then the best are laid on it.

Neither touches all pairs: a fragment asks the index, and only its candidates are matched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from pairingnet.archive.catalogue import Entry, now
from pairingnet.archive.folder import Archive, ArchiveKeys
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.match.many import match_in_tiles
from pairingnet.match.ring import RingFeatures
from pairingnet.search.votes import Searchable, votes_of
from pairingnet.types import Fragment, PairMatch

_ASKING = 16  # fragments in a job of the search
_ROUND = 1024  # fragments whose joins are looked for before that is written down
_CACHED = 600  # fragments a process keeps


@dataclass(frozen=True)
class Found:
    """Joins, the likeliest first; how many fragments were searched now, and how many pairs were laid on each other."""

    joins: tuple[PairMatch, ...]
    searched: int
    matched: int


def search(archive: Archive, fragments: Sequence[Fragment], candidates: int = 0) -> list[PairMatch]:
    """How fragments that are not in the archive fit those that are, the likeliest joins first."""
    method = archive.method
    asking = method.know(list(method.features(fragments)), archive.bank())
    keys = archive.keys()
    try:
        numbers = [candidates_of(archive, keys, each.side, candidates) for each in asking]
    finally:
        keys.close()
    entries = {entry.number: entry for entry in keys.table.entries}
    joins = [
        method.match(each, archive.read(entries[number]))
        for each, own in zip(asking, numbers, strict=True)
        for number in own
    ]
    return _likely(joins, archive.settings.least)


def find_joins(
    archive: Archive,
    since: str = "",
    jobs: Workers = 1,
    candidates: int = 0,
    waits: Callable[[str], None] = lambda _: None,
) -> Found:
    """Look for joins of the fragments whose joins were not looked for yet, and store them.

    since: only fragments added then or later (ISO date or time, UTC); all their stored joins are given. Without it, the
    joins that were found now. waits: hears who else is writing, where that has to be waited for.
    """
    with archive.writing("archive joins", told=waits):
        archive.update_index()
        new = archive.catalogue.entries("joined IS NULL AND added >= ?", (since,))
        began = now()
        reader = _Reader(archive.folder, began, candidates)
        number_of = {entry.id: entry.number for entry in archive.catalogue.entries()}
        matched, waiting = 0, set[tuple[int, int]]()
        for first in range(0, len(new), _ROUND):
            numbers = [entry.number for entry in new[first : first + _ROUND]]
            pairs = _candidate_pairs(archive, reader, numbers, jobs) - archive.catalogue.known_pairs(numbers) - waiting
            _lay(archive, reader, sorted(pairs), number_of, jobs)
            with archive.catalogue.transaction():
                archive.catalogue.mark_joined(numbers, now())
            matched += len(pairs)
            # Most of these are no joins, and not stored; the later one of each would ask for it again.
            waiting = {(a, b) for a, b in waiting | pairs if b > numbers[-1]}
    told = archive.catalogue.joins(since) if since else archive.catalogue.joins(made=began)
    return Found(tuple(told), len(new), matched)


def candidates_of(archive: Archive, keys: ArchiveKeys, piece: Searchable, most: int = 0, own: int = -1) -> list[int]:
    """The numbers of the fragments that one fragment's points vote for most."""
    settings = archive.settings
    others, _ = votes_of(piece, keys, archive.method.scale, own, settings.votes)
    return [int(number) for number in others[: most or settings.candidates]]


def _candidate_pairs(archive: Archive, reader: _Reader, numbers: Sequence[int], jobs: Workers) -> set[tuple[int, int]]:
    """Some fragments with their candidates, the smaller number first."""
    chunks = [numbers[first : first + _ASKING] for first in range(0, len(numbers), _ASKING)]
    parts = run_jobs(partial(_ask, reader), chunks, jobs if archive.index_is_shared else 1, "searching")
    return {(min(a, b), max(a, b)) for part in parts for a, own in part for b in own}


def _lay(
    archive: Archive, reader: _Reader, pairs: Sequence[tuple[int, int]], number_of: Mapping[str, int], jobs: Workers
) -> None:
    """Lay pairs on each other, and store the joins that are likely."""

    def keep(matches: Sequence[PairMatch]) -> None:
        likely = _likely(matches, archive.settings.least)
        with archive.catalogue.transaction():
            archive.catalogue.put_joins([(number_of[m.source], number_of[m.target], m) for m in likely], now())

    match_in_tiles(partial(_match, reader), pairs, jobs, keep)


def _likely(joins: Sequence[PairMatch], least: float) -> list[PairMatch]:
    likely = [join for join in joins if join.target_from_source is not None and join.probability >= least]
    return sorted(likely, key=lambda join: (-join.score, join.source, join.target))


@dataclass(frozen=True)
class _Reader:
    """How a process finds the archive; `call` tells one search from the next, between which it may have grown."""

    folder: Path
    call: str
    candidates: int


@lru_cache(maxsize=1)
def _archive(reader: _Reader) -> tuple[Archive, dict[int, Entry]]:
    archive = Archive(reader.folder, part_of_a_command=True)
    return archive, {entry.number: entry for entry in archive.catalogue.entries()}


@lru_cache(maxsize=1)
def _keys(reader: _Reader) -> ArchiveKeys:
    return _archive(reader)[0].keys()


@lru_cache(maxsize=_CACHED)
def _features(reader: _Reader, number: int) -> RingFeatures:
    archive, entries = _archive(reader)
    return archive.read(entries[number])


def _ask(reader: _Reader, numbers: list[int]) -> list[tuple[int, list[int]]]:
    """Each fragment with its candidates."""
    archive, entries = _archive(reader)
    return [
        (number, candidates_of(archive, _keys(reader), archive.read(entries[number]).side, reader.candidates, number))
        for number in numbers
    ]


def _match(reader: _Reader, pairs: list[tuple[int, int]]) -> list[PairMatch]:
    method = _archive(reader)[0].method
    found: list[PairMatch] = []
    for pair in pairs:
        # By their ids: a fragment that comes again gets another number, and its joins shall stay the same.
        source, target = sorted((_features(reader, number) for number in pair), key=lambda each: each.id)
        found.append(method.match(source, target))
    return found
