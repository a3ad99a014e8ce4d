"""Numbers in words, as a person would say them."""

from __future__ import annotations


def counted(count: int, singular: str, plural: str = "") -> str:
    """`1 group`, `2 groups`."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """`10 s`, `1 minute`, `1.5 hours`: two digits are enough to plan by."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if round(seconds / 60) < 60:
        return counted(round(seconds / 60), "minute")
    hours = f"{seconds / 3600:.1f}"
    return "1 hour" if hours == "1.0" else f"{hours} hours"
