"""Checkpoints of a training with sharded variables: one folder for each shard, and one for the rest, written last.

    run/                            all other leaves, the same on all workers; its manifest commits a checkpoint
    run/shards-2/0, run/shards-2/1  the part of each of two shards

All are saved at one step, while no message is in flight. Only when every shard's part is on the disk is the rest saved,
with the number of shards: a step is valid if `run/` has it. A training with another number of shards reads all parts.
"""

import functools
import os
import pathlib
import shutil
import types
from typing import Any

import numpy as np

from autobatch.checkpoint.checkpoints import Checkpoints
from autobatch.errors import CheckpointError, OptionError
from autobatch.ray.shard import owners_of


def checkpoints_of(given: object) -> Checkpoints | None:
    """The checkpoints of a training, for the process that leads it.

    Args:
        given: an `ab.Checkpoints`, or a folder for one; None: nothing is saved.
    """
    if given is not None and not isinstance(given, Checkpoints | str | os.PathLike):
        raise OptionError(f"checkpoints={given!r}; expected ab.Checkpoints(folder, ...) or a folder")
    if isinstance(given, Checkpoints) and given.background:
        raise OptionError(
            "checkpoints with background=True: a checkpoint in shards is one when all of them are on the disk; "
            "leave background out"
        )
    return given if given is None or isinstance(given, Checkpoints) else Checkpoints(given)


def commit(saver: Checkpoints, step: int, dense: list[Any], state: object, shards: int, names: list[str]) -> None:
    """Save all leaves that are not variables; this commits the checkpoint whose parts the shards have saved.

    The folders of other numbers of shards that no checkpoint needs are removed.
    """
    saver.save(step, dense, state, {"shards": shards, "variables": names})
    folders = [each for each in pathlib.Path(saver.folder).glob("shards-*") if each.name != f"shards-{shards}"]
    if folders:
        needed = {f"shards-{saver.restore(step=step).extra['shards']}" for step in saver.steps()}
        for each in folders:
            if each.name not in needed:
                shutil.rmtree(each, ignore_errors=True)


def shard_folder(folder: str, shards: int, index: int) -> str:
    """The folder in which a shard saves.

    >>> shard_folder("run", 4, 1)
    'run/shards-4/1'
    """
    return os.path.join(folder, f"shards-{shards}", str(index))


def restored_shard(folder: str, step: int, saved_in: int, index: int, shards: int) -> tuple[list[Any], Any]:
    """A shard's parts of the variables, and its optimiser's state, from a checkpoint.

    Args:
        saved_in: the number of shards that saved it. index, shards: the shard's number, of how many shards now.

    Raises:
        CheckpointError: a shard's checkpoint is missing or damaged.
    """
    if saved_in == shards:
        tables, state, _ = _restore_shard(folder, step, shards, index)
        return tables, state
    out: list[Any] = []
    counted: list[list[Any]] = []
    for old in range(saved_in):
        tables, state, _ = _restore_shard(folder, step, saved_in, old)
        if not out:
            out = [_empty_like(table, saved_in, shards) for table in tables]
            counted = [[] for _ in tables]
        for own, table, arrays in zip(out, tables, counted, strict=True):
            for block in table.blocks():
                own.restore_block(block.take(np.flatnonzero(owners_of(block.keys, shards) == index)))
            own.restore_block(step=table.step)
            arrays.append(types.SimpleNamespace(arrays=functools.partial(dict, table.arrays())))
    for own, arrays in zip(out, counted, strict=True):
        own._admission_of(arrays, lambda keys: owners_of(keys, shards) == index)
    return out, state


def _restore_shard(folder: str, step: int, shards: int, index: int) -> Any:
    path = shard_folder(folder, shards, index)
    try:
        return Checkpoints(path).restore(step=step)
    except CheckpointError as error:
        raise CheckpointError(f"shard {index} of {shards} of step {step} in {folder}: {error}") from error


def _empty_like(table: Any, before: int, now: int) -> Any:
    """An empty variable like this one, its capacity rescaled to the new number of shards."""
    settings = table._arguments()
    if settings["capacity"] is not None:
        settings = settings | {"capacity": -(-settings["capacity"] * before // now)}
    return type(table).from_settings(settings)
