"""Ray, started on this machine for this process or joined where the user says, and what it says of lost processes."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from autobatch.errors import UnsupportedError
from autobatch.ray.hosts import Lost

# Messages of a training go as they are: in the store of objects they would cost both sides twice as much.
_SYSTEM = {"max_direct_call_object_size": 16 << 20, "task_rpc_inlined_bytes_limit": 64 << 20}
_DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}


def ray_session(workers: int | None = None) -> Any:
    """The module `ray`, connected: to the cluster that `RAY_ADDRESS` names, or to one of this process's own.

    Where this starts Ray it has no dashboard; where this imports it first, it reports no usage and asks for a token
    (`RAY_USAGE_STATS_ENABLED=0`, `RAY_AUTH_MODE=token`). What the environment, or a `ray.init` before, says holds.

    Args:
        workers: how many CPUs Ray has to believe in at least; None: those of the machine.

    Raises:
        UnsupportedError: Ray is not installed.
    """
    for name, value in _DEFAULTS.items():
        if "ray" not in sys.modules:  # which reads them when it is imported
            os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            "ab.ray needs Ray: pip install autobatch[ray]. In this process, without it: ab.ray.map(..., workers=0), "
            "ab.ray.train(..., communicator=ab.ray.LocalCommunicator(2))"
        ) from error
    if ray.is_initialized():
        return ray
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
        return ray
    cpus = max(os.cpu_count() or 1, workers or 1)
    ray.init(
        address="local",  # not one that somebody else has started on this machine
        num_cpus=cpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
        _system_config=_SYSTEM,
    )
    return ray


@contextlib.contextmanager
def losses_of_processes() -> Iterator[None]:
    """Turn Ray's errors into `Lost` where processes are gone, and into the user's error where his code raised.

    Raises:
        Lost: an actor, its machine, or an object that one held is gone.
    """
    from ray import exceptions  # noqa: PLC0415

    gone = (
        exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.ObjectLostError,
        exceptions.NodeDiedError, exceptions.OwnerDiedError, exceptions.LocalRayletDiedError,
        exceptions.RaySystemError, exceptions.OutOfMemoryError,
    )  # fmt: skip
    try:
        yield
    except exceptions.RayTaskError as error:
        cause = error.cause
        while isinstance(cause, exceptions.RayTaskError):  # a worker's, of what a shard raised
            cause = cause.cause
        if isinstance(cause, gone):
            raise Lost(str(cause).strip().partition("\n")[0]) from None
        raise (cause if isinstance(cause, Exception) else error) from None
    except gone as error:
        raise Lost(str(error).strip().partition("\n")[0]) from None
