"""pairingnet: puts torn pictures back together.

The public names are loaded on first use, so that `import pairingnet` stays instant.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME_OF = {
    "Fragment": "types",
    "Rigid2D": "geometry",
    "PairingNetError": "errors",
    "Collection": "io.collection",
    "read_collection": "io.collection",
    "read_image": "io.images",
    "prepare_image": "prepare.scan",
    "tear_picture": "synth.tear",
}

__all__ = [  # noqa: PLE0604 (spelt out for type checkers in the table above)
    "__version__",
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairingnet' has no attribute '{name}'")
    return getattr(import_module(f"pairingnet.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
