"""pairingnet: puts torn pictures back together.

The public names are loaded on first use, so that `import pairingnet` stays instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairingnet.errors import PairingNetError
    from pairingnet.geometry import Rigid2D
    from pairingnet.io.collection import Collection, read_collection
    from pairingnet.io.images import read_image
    from pairingnet.prepare.load import load_fragment, load_fragments
    from pairingnet.prepare.scan import prepare_image
    from pairingnet.types import Fragment

__version__ = "0.1.0"

__all__ = [
    "Collection",
    "Fragment",
    "PairingNetError",
    "Rigid2D",
    "__version__",
    "load_fragment",
    "load_fragments",
    "prepare_image",
    "read_collection",
    "read_image",
]

_HOME_OF = {
    "Collection": "io.collection",
    "Fragment": "types",
    "PairingNetError": "errors",
    "Rigid2D": "geometry",
    "load_fragment": "prepare.load",
    "load_fragments": "prepare.load",
    "prepare_image": "prepare.scan",
    "read_collection": "io.collection",
    "read_image": "io.images",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairingnet' has no attribute '{name}'")
    return getattr(import_module(f"pairingnet.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
