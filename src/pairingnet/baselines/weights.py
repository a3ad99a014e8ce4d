"""An ensemble of JigsawNet's learners in one safetensors file: loaded strictly, without running any code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import from_numpy

from pairingnet.baselines.jigsawnet import Ensemble, JigsawNet
from pairingnet.config import JigsawSettings
from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.settings import as_dict, with_values

_ALPHAS = "alphas"


def save_jigsaw(path: Path, ensemble: Ensemble, story: Mapping[str, str]) -> None:
    """Store the learners and their say, with how they were made."""
    arrays = {_ALPHAS: np.array(ensemble.alphas, dtype=np.float64)}
    for number, learner in enumerate(ensemble.learners):
        arrays |= {f"{number}.{name}": value.detach().cpu().numpy() for name, value in learner.state_dict().items()}
    told = {"settings": json.dumps(as_dict(ensemble.settings)), **story}
    data = save({name: np.ascontiguousarray(value) for name, value in arrays.items()}, told)
    write_whole(path, lambda file: file.write_bytes(data))


def load_jigsaw(path: Path) -> Ensemble:
    """The ensemble of a weights file."""
    try:
        with safe_open(path, framework="numpy") as stored:
            told = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        settings = with_values(JigsawSettings(), json.loads(told["settings"]), str(path))
        alphas = tuple(float(alpha) for alpha in arrays.pop(_ALPHAS))
        learners = []
        for number in range(len(alphas)):
            own = f"{number}."
            learner = JigsawNet(settings)
            of_learner = {n.removeprefix(own): arrays[n] for n in arrays if n.startswith(own)}
            learner.load_state_dict({name: from_numpy(value) for name, value in of_learner.items()}, strict=True)
            learners.append(learner)
        if not learners:
            raise ValueError("there are no learners in it")
    except FileNotFoundError:
        raise CollectionError(
            f"There are no weights {path}.", "Check the path, or run 'pairingnet train jigsawnet'."
        ) from None
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CollectionError(f"{path} holds no weights of JigsawNet ({error}).", "Check the path.") from error
    return Ensemble(learners, alphas)
