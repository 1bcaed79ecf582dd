"""Starts Ray for this process, or joins the cluster that the user names; Ray's errors become `ProcessesLostError`."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from autobatch.errors import UnsupportedError

# A training's messages are sent inline: through Ray's object store they would cost both sides twice as much.
_SYSTEM = {"max_direct_call_object_size": 16 << 20, "task_rpc_inlined_bytes_limit": 64 << 20}
_DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}


class ProcessesLostError(Exception):
    """Processes of a training died or cannot be reached."""


def ray_session(workers: int | None = None) -> Any:
    """The module `ray`, connected to the cluster that `RAY_ADDRESS` names, or else to one of this process's own.

    If Ray is started here, it has no dashboard; if it is imported here first, it reports no usage and requires a token
    (`RAY_USAGE_STATS_ENABLED=0`, `RAY_AUTH_MODE=token`). The environment, or an earlier `ray.init`, takes precedence.

    Args:
        workers: the least number of CPUs that Ray is told it has; None: those of the machine.

    Raises:
        UnsupportedError: Ray is not installed.
    """
    for name, value in _DEFAULTS.items():
        if "ray" not in sys.modules:  # Ray reads them when it is imported
            os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            "ab.ray needs Ray: pip install ray pyarrow tqdm. In this process, without it: ab.ray.map(..., workers=0), "
            "ab.ray.train(..., communicator=ab.ray.LocalCommunicator(2))"
        ) from error
    if ray.is_initialized():
        return ray
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
        return ray
    cpus = max(os.cpu_count() or 1, workers or 1)
    ray.init(
        address="local",  # not a cluster that somebody else started on this machine
        num_cpus=cpus,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
        _system_config=_SYSTEM,
    )
    return ray


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Turn Ray's errors into `ProcessesLostError` if processes are gone, into the user's own error if user code raised.

    Raises:
        ProcessesLostError: an actor, its machine, or an object that it held is gone.
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
        while isinstance(cause, exceptions.RayTaskError):  # a worker's error may wrap a shard's
            cause = cause.cause
        if isinstance(cause, gone):
            raise ProcessesLostError(str(cause).strip().partition("\n")[0]) from None
        raise (cause if isinstance(cause, Exception) else error) from None
    except gone as error:
        raise ProcessesLostError(str(error).strip().partition("\n")[0]) from None
