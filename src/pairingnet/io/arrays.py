"""Named arrays in one file, with what they were made of, and a checksum: safetensors, nothing but numbers.

A file that is damaged is as good as none: it is derived, and made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pairingnet.io.files import write_whole
from pairingnet.io.fingerprint import fingerprint, fingerprint_of_bytes

Arrays = dict[str, NDArray[Any]]

SUFFIX = ".safetensors"
_ABOUT = "about"


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], made_of: str) -> None:
    """Store arrays whole, with the fingerprint of what they were made of."""
    own = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    # In one entry: several are written in any order, and the same arrays would not always give the same bytes.
    about = json.dumps({"made_of": made_of, "checksum": _checksum(own, made_of)})
    write_whole(path, lambda file: file.write_bytes(save(own, {_ABOUT: about})))


def read_arrays(path: Path, made_of: str | None = None) -> Arrays | None:
    """Arrays as they were written; None where there are none, they are damaged, or were made of something else."""
    try:
        data = path.read_bytes()
        told = _metadata(data)
        if made_of is not None and told["made_of"] != made_of:
            return None
        arrays = load(data)
        return arrays if told["checksum"] == _checksum(arrays, told["made_of"]) else None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    about: dict[str, str] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ABOUT])
    return about


def _checksum(arrays: Mapping[str, NDArray[Any]], made_of: str) -> str:
    """Of names, types, shapes and numbers."""
    names = sorted(arrays)
    shapes = fingerprint(made_of, [(name, arrays[name].dtype.str, arrays[name].shape) for name in names])
    return fingerprint_of_bytes(shapes.encode(), *(arrays[name].tobytes() for name in names))
