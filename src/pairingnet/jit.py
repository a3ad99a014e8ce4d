"""Loops over contour points and pixels, compiled by numba.

Without `fastmath` a compiled loop adds up in the order in which it is written, whatever vector instructions a machine
has: its results are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the result on disk."""
    return cast(Callable[..., Any], njit(cache=True, nogil=True, error_model="numpy")(function))
