"""Jobs on a Ray cluster (extra `cluster`): many machines, of which some may die.

Every machine needs the same version of this program, and sees the input and output folders under the same paths. A job
whose process or machine dies runs again elsewhere; results come back in the order of the items, as they do locally.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pairingnet import __version__
from pairingnet.engine.local import progress_bar
from pairingnet.errors import SettingsError

Item = TypeVar("Item")
Result = TypeVar("Result")

_RETRIES = 8  # of one job, when what runs it dies
_AHEAD = 3  # jobs handed out per core, so that none waits for work


class RayEngine:
    """A cluster: the one at `address`; without one, that of RAY_ADDRESS, or the cores of this machine."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self._ray = ray_module(_is_ours(address))  # says so at once where it is not installed

    def run(
        self, job: Callable[[Item], Result], items: Sequence[Item], label: str, done: Callable[[Result], None]
    ) -> list[Result]:
        """See `Engine`."""
        if not items:
            return []
        ray = connect(self.address, _one_thread())
        call = ray.remote(num_cpus=1, max_retries=_RETRIES)(_call)
        shared = ray.put(job)  # once per machine, not once per item
        results: dict[int, Result] = {}
        place_of: dict[Any, int] = {}
        waiting = list(reversed(range(len(items))))
        with progress_bar() as bar:
            task = bar.add_task(label, total=len(items))
            try:
                while waiting or place_of:
                    # Counted every time: machines come and go.
                    wanted = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
                    while waiting and len(place_of) < wanted:
                        place = waiting.pop()
                        place_of[call.remote(__version__, shared, items[place])] = place
                    for finished in ray.wait(list(place_of), num_returns=1)[0]:
                        place = place_of.pop(finished)
                        results[place] = self._result(finished)
                        done(results[place])
                        bar.advance(task)
            except BaseException:
                for running in place_of:
                    ray.cancel(running, force=True)
                raise
        return [results[place] for place in range(len(items))]

    def _result(self, finished: Any) -> Any:
        try:
            return self._ray.get(finished)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None  # the job's own error, as it would be here


def connect(address: str = "", environment: Mapping[str, str] | None = None) -> Any:
    """Ray, connected to the cluster at `address`; without one, see `RayEngine`."""
    ours = _is_ours(address)
    ray = ray_module(ours)
    if not ray.is_initialized():
        try:
            ray.init(
                address="local" if ours else address or None,
                include_dashboard=False if ours else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": dict(environment or {})},
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SettingsError(
                f"There is no Ray cluster at {address or os.environ.get('RAY_ADDRESS', 'this machine')} "
                f"({str(error).splitlines()[0]}).",
                "Start it with 'ray start --head', and check the address.",
            ) from error
    return ray


def _call(version: str, job: Callable[[Item], Result], item: Item) -> Result:
    """Runs on a worker."""
    if version != __version__:
        raise SettingsError(
            f"A machine of the cluster has version {__version__} of pairingnet, this one has {version}.",
            "Install the same version everywhere.",
        )
    import cv2

    cv2.setNumThreads(1)
    return job(item)


def _one_thread() -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def _is_ours(address: str) -> bool:
    """Whether Ray is to be started here, for this command alone."""
    return not (address or os.environ.get("RAY_ADDRESS"))


def ray_module(ours: bool = False) -> Any:
    """Ray, where it is installed; `ours`: it will be started here, where nobody else is to reach it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves the machine unasked
    if ours:
        # Read when Ray is imported: all of its ports are those of the loopback interface, as it has them by itself on
        # systems where it makes no clusters.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            # Other users of this machine reach them as well. Ray's own token would lie in the home folder for ever.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise SettingsError("Ray is not installed.", "pip install 'pairingnet[cluster]'") from None
    return ray
