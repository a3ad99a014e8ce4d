"""One training on the machines of a Ray cluster (extra `cluster`): Ray starts the processes, torch joins them.

Every process runs the same training, told its rank as torch's own launcher would. When one dies, all are stopped and
started again: a training continues from its last checkpoint, which lies in a folder that all machines see.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from pairingnet.engine.ray import connect, ray_module
from pairingnet.errors import PairingNetError, SettingsError

_RESTARTS = 8


def train_on_ray(training: Callable[[], None], processes: int, address: str = "") -> None:
    """Run a training as so many processes; each calls `training`, which joins the others."""
    ray = connect(address)
    cores = int(ray.cluster_resources().get("CPU", 1)) // processes
    if cores < 1:
        raise SettingsError(f"The cluster has fewer than {processes} cores.", "Ask for fewer processes.")
    for restart in range(_RESTARTS + 1):
        started = [ray.remote(num_cpus=cores)(_Process).remote() for _ in range(processes)]
        try:
            meeting = ray.get(started[0].meeting_place.remote())
            ray.get([each.run.remote(training, rank, processes, meeting) for rank, each in enumerate(started)])
            return
        except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
            cause = getattr(error, "cause", error)
            # Where one process dies, the others fail as well: they miss it.
            if isinstance(cause, PairingNetError) or restart == _RESTARTS:
                raise cause from None
        finally:
            for each in started:
                ray.kill(each)


class _Process:
    """One of the processes; runs on a worker."""

    def meeting_place(self) -> tuple[str, int]:
        """An address of this machine, and a port that is free now."""
        with socket.socket() as trial:
            trial.bind(("", 0))
            port = int(trial.getsockname()[1])
        return str(ray_module().util.get_node_ip_address()), port

    def run(self, training: Callable[[], None], rank: int, processes: int, meeting: tuple[str, int]) -> None:
        told: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": 0}
        told |= {"MASTER_ADDR": meeting[0], "MASTER_PORT": meeting[1]}
        os.environ.update({name: str(value) for name, value in told.items()})
        training()
