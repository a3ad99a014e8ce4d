"""pairingnet: puts torn pictures back together.

The public names are loaded on first use, so that `import pairingnet` stays instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairingnet.api import assemble, load_model, match_pair, search
    from pairingnet.errors import PairingNetError
    from pairingnet.geometry import Rigid2D
    from pairingnet.io.collection import Collection, read_collection
    from pairingnet.io.images import read_image
    from pairingnet.match.paper_weights import PaperModel
    from pairingnet.match.weights import RingModel
    from pairingnet.pipeline import Solution, solve
    from pairingnet.prepare.files import read_fragment, read_fragments
    from pairingnet.prepare.load import load_fragment, load_fragments
    from pairingnet.prepare.scan import prepare_image
    from pairingnet.types import Assembly, Decisions, Fragment, Group, Image, PairMatch

__version__ = "0.1.0"

__all__ = [
    "Assembly",
    "Collection",
    "Decisions",
    "Fragment",
    "Group",
    "Image",
    "PairMatch",
    "PairingNetError",
    "PaperModel",
    "Rigid2D",
    "RingModel",
    "Solution",
    "__version__",
    "assemble",
    "load_fragment",
    "load_fragments",
    "load_model",
    "match_pair",
    "prepare_image",
    "read_collection",
    "read_fragment",
    "read_fragments",
    "read_image",
    "search",
    "solve",
]

_HOME_OF = {
    "Assembly": "types",
    "Collection": "io.collection",
    "Decisions": "types",
    "Fragment": "types",
    "Group": "types",
    "Image": "types",
    "PairMatch": "types",
    "PairingNetError": "errors",
    "Rigid2D": "geometry",
    "PaperModel": "match.paper_weights",
    "RingModel": "match.weights",
    "Solution": "pipeline",
    "assemble": "api",
    "load_fragment": "prepare.load",
    "load_fragments": "prepare.load",
    "load_model": "api",
    "match_pair": "api",
    "prepare_image": "prepare.scan",
    "read_collection": "io.collection",
    "read_fragment": "prepare.files",
    "read_fragments": "prepare.files",
    "read_image": "io.images",
    "search": "api",
    "solve": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairingnet' has no attribute '{name}'")
    return getattr(import_module(f"pairingnet.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
