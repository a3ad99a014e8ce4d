"""Counts and distributions of a collection: the paper's dataset table and figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.io.collection import Collection


@dataclass(frozen=True, eq=False)
class CollectionStatistics:
    """areas_px (F,); overlap_ratios and difficulties (P,); the rest are counts."""

    sources: int
    areas_px: NDArray[np.float64]
    overlap_ratios: NDArray[np.float64]
    difficulties: NDArray[np.str_]
    fragments_per_part: dict[str, int]
    pairs_per_part: dict[str, int]

    def counts(self) -> dict[str, str]:
        """What a person wants to know first, ready to print."""
        fragments, pairs = len(self.areas_px), len(self.overlap_ratios)
        rows = {
            "pictures": f"{self.sources:,}",
            "fragments": f"{fragments:,}",
            "true pairs": f"{pairs:,}",
        }
        if self.sources:
            rows["fragments per picture"] = f"{fragments / self.sources:.1f}"
        if fragments:
            rows["neighbours per fragment"] = f"{2 * pairs / fragments:.2f}"
            rows["median area"] = f"{np.median(self.areas_px):,.0f} px²"
        for name in ("High", "Medium", "Low"):
            if pairs:
                count = int((self.difficulties == name).sum())
                rows[f"{name} difficulty"] = f"{count:,} ({count / pairs:.1%})"
        for part, count in self.fragments_per_part.items():
            rows[f"part {part}"] = f"{count:,} fragments, {self.pairs_per_part.get(part, 0):,} pairs"
        return rows

    def as_dict(self) -> dict[str, Any]:
        pairs = max(1, len(self.difficulties))
        return {
            "sources": self.sources,
            "fragments": len(self.areas_px),
            "pairs": len(self.overlap_ratios),
            "difficulty": {name: int((self.difficulties == name).sum()) for name in ("High", "Medium", "Low")},
            "difficulty_share": {
                name: round(float((self.difficulties == name).sum() / pairs), 4) for name in ("High", "Medium", "Low")
            },
            "parts": {
                part: {"fragments": count, "pairs": self.pairs_per_part.get(part, 0)}
                for part, count in self.fragments_per_part.items()
            },
        }


def collection_statistics(collection: Collection) -> CollectionStatistics:
    """Count a collection; no image is read."""
    part_of = {record.id: record.part for record in collection.fragments}
    known = sorted({record.source for record in collection.fragments if record.source})
    return CollectionStatistics(
        sources=len(known),
        areas_px=np.array([record.area_px for record in collection.fragments], dtype=np.float64),
        overlap_ratios=np.array([pair.overlap_ratio for pair in collection.pairs], dtype=np.float64),
        difficulties=np.array([pair.difficulty for pair in collection.pairs], dtype=np.str_),
        fragments_per_part=dict(sorted(Counter(part for part in part_of.values() if part).items())),
        pairs_per_part=dict(Counter(part_of[pair.source] for pair in collection.pairs)),
    )
