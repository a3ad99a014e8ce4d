"""What has changed between two layouts, in words."""

from __future__ import annotations

from pairingnet.types import Assembly


def changes(before: Assembly, after: Assembly) -> list[str]:
    """One line for each piece that has other pieces around it now, gathered where many have."""
    was, is_now = _companions(before), _companions(after)
    lines = []
    for name in sorted(was.keys() | is_now.keys()):
        old, new = was.get(name, frozenset()), is_now.get(name, frozenset())
        if old and not new:
            lines.append(f"{name} is alone now")
        elif new and not old:
            lines.append(f"{name} has joined a group of {len(new) + 1}")
    sizes = [sorted((len(group) for group in each.groups), reverse=True) for each in (before, after)]
    if sizes[0] != sizes[1]:
        lines.append(f"groups of {_listed(sizes[0])} are groups of {_listed(sizes[1])} now")
    elif not lines and was != is_now:
        lines.append("pieces have changed groups")
    return lines


def _companions(assembly: Assembly) -> dict[str, frozenset[str]]:
    """The other pieces of each piece's group."""
    groups = [frozenset(group.poses) for group in assembly.groups]
    alone = {name: frozenset[str]() for name in assembly.singles}
    return alone | {name: group - {name} for group in groups for name in group}


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes)) or "none"
