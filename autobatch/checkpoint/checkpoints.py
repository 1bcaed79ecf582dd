"""`Checkpoints`: a folder of checkpoints of one training, each full or incremental, and each committed atomically.

A save collects the data to write as streams (`streams.py`): each array whole, or only its changed units. It writes them
into one new file and commits a manifest (`manifests.py`). The last committed manifest, with the digests and marks taken
for it, is the base of the next increment. The base is replaced only after the next commit, so a save that fails changes
nothing.
"""

import contextlib
import dataclasses
import functools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.checkpoint.entry_reader import Entries
from autobatch.checkpoint.files import Files, Lock, making
from autobatch.checkpoint.manifests import Folder, Manifest
from autobatch.checkpoint.streams import (
    ROWS_AT_ONCE,
    Digester,
    Stream,
    array_stream,
    changes_stream,
    is_tracked,
    table_stream,
    whole_table,
    write,
    writer_of,
)
from autobatch.checkpoint.tensor_files import TensorWriter
from autobatch.checkpoint.trees import ANY, Contents, describe, rebuild
from autobatch.core.config import config
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import few_rows
from autobatch.core.pytree import leaves
from autobatch.errors import CheckpointError, CheckpointWarning
from autobatch.facts.other_libraries import Spelled
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.tables.keyed.variable import EmbeddingVariable


class _Restored(NamedTuple):
    params: Any
    state: Any
    step: int


class Restored(_Restored):
    """The result of `Checkpoints.restore`: the tuple (params, state, step), with two more attributes.

    Attributes:
        params, state: the saved trees, in the structure of the trees given to `restore`. step: the training step.
        extra: the tree that was saved as `extra`.
        initialised: a text for each place in `state` that was not saved, or not for this optimiser, and stays as given.
    """

    extra: Any = None
    initialised: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return few_rows(_Restored(*self), *leaves(tuple(self))).removeprefix("_")


@dataclasses.dataclass(slots=True)
class _Base:
    """The last committed checkpoint, against which the next increment is computed.

    Attributes:
        digests: for each tracked array entry ((shape, dtype), digests). marks: for each entry of a table of keys, the
            table and its `mark()` at the save. increments: how many incremental saves since the last full one.
    """

    manifest: Manifest
    digests: dict[str, tuple[Any, np.ndarray]]
    marks: dict[str, tuple[EmbeddingVariable, int]]
    increments: int


@dataclasses.dataclass(slots=True)
class _Save:
    """A save in progress: the data to write, and the fields of the next `_Base`."""

    sequence: int
    step: int
    trees: dict[str, Any]
    streams: list[Stream] = dataclasses.field(default_factory=list)
    entries: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    digests: dict[str, tuple[Any, np.ndarray]] = dataclasses.field(default_factory=dict)
    marks: dict[str, tuple[EmbeddingVariable, int]] = dataclasses.field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"{self.sequence:08d}.safetensors"

    def add(self, name: str, before: list[dict[str, Any]], stream: Stream, entry: dict[str, Any]) -> None:
        """Add an entry: the parts saved `before`, and a new part that `stream` writes and `entry` describes."""
        self.streams.append(stream)
        self.entries[name] = [*before, {"file": self.file, **entry}]


class Checkpoints(metaclass=Spelled):
    """The checkpoints of a training run in a folder: parameters, tables and the optimiser's state of one step together.

    A save writes and flushes new files, then commits with one rename. So after a crash, a `kill -9` or a power cut the
    folder has the last checkpoint for which `save` returned, or the one being committed, never a mixture. The first
    save of a process is full. Later ones are incremental: of arrays they write the units (runs of elements) whose
    digests changed, computed at memory speed; of an `EmbeddingVariable`, the keys that it recorded as changed.
    docs/checkpoints.md describes the files, which other programs can read.

    Only one saver may hold a folder: from its first `save` until `close`, or until the object or its process is gone.
    Readers may be many. Use it in a `with` statement, or call `close`, which waits for the last background save.

    Args:
        folder: its path; the first save creates it.
        keep: how many good checkpoints to keep, the latest ones. Each save removes older ones when it is done, with
            the files that no kept one needs. A damaged checkpoint does not count, so the last good ones stay.
        full_every: one save in this many is full, so no checkpoint has more parts; 1: every save is full. With
            `background` only the first is full; later, the parts are merged from the files (`compact`) instead.
        background: `save` returns once it has copied the data to write; a thread writes the copy. What exceeds
            `config.memory_budget` (1 GiB) in total is written before `save` returns. Only one save runs at a time: the
            next one waits. An error in the thread is raised by the next call, or by `wait`.
        files: the object that reads and writes files; another one serves tests and other file systems.

    Raises:
        OptionError: `keep` or `full_every` is less than 1.

    Source: the commit by rename is SQLite's and LevelDB's; incremental checkpoints of keys are DeepRec's.

    >>> import tempfile
    >>> params, optimizer = {"w": np.zeros(3)}, ab.optim.Adagrad(0.5)
    >>> state = optimizer.init(params)
    >>> with ab.Checkpoints(tempfile.mkdtemp()) as checkpoints:
    ...     for step in range(1, 4):
    ...         params, state = optimizer.update(params, {"w": np.ones(3)}, state)
    ...         checkpoints.save(step, params, state)
    ...     checkpoints.steps()
    ...     params, state, step = checkpoints.restore(step=2)
    [1, 2, 3]
    >>> step, state["step"], params["w"].round(3)
    (2, 2, array([-0.854, -0.854, -0.854]))
    """

    def __init__(
        self, folder: Any, *, keep: int = 3, full_every: int = 10, background: bool = False, files: Files | None = None
    ) -> None:
        self.keep, self.full_every = whole_option(keep, "keep"), whole_option(full_every, "full_every")
        self.background = background
        self._folder = Folder(os.path.abspath(os.fspath(folder)), files or Files())
        self._digest = Digester()
        self._base: _Base | None = None
        self._lock: Lock | None = None
        self._turn = threading.Lock()  # held by the thread that saves
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def folder(self) -> str:
        """The folder's path."""
        return self._folder.path

    @hiding_frames
    def save(self, step: int, params: object, state: object = None, extra: object = None) -> None:
        """Save parameters, the optimiser's state and other data of a step.

        Once it returns, the checkpoint survives a power cut; with `background`, once the next call or `wait` returns.
        Tables of keys with `steps_to_live` first drop the keys that were not updated for longer than that.

        Args:
            step: the number of the step. A step that is already saved is replaced. It may be lower than that of an
                earlier save: the last save, not the highest step, is what `restore` returns.
            params, state, extra: trees, as for `ab.save`. `extra` is for other data that a resumed run needs: its
                position in the data, its `np.random.Generator`.

        Raises:
            CheckpointError: another saver holds the folder. UnsupportedError, DTypeError: a leaf that cannot be stored.
            OSError: the system's error for a file; the last checkpoint is unchanged.
        """
        step = whole_option(step, "step", 0)
        with self._turn:
            self._save(step, params, state, extra)

    def _save(self, step: int, params: object, state: object, extra: object) -> None:
        self.wait()
        self._lock_folder()
        given = {"params": params, "state": state, "extra": extra}
        trees, contents = _describe_trees(given)
        expiring = [table for table in contents.tables.values() if table.steps_to_live is not None]
        if sum(table.shrink() for table in expiring):
            trees, contents = _describe_trees(given)
        base = self._intact_base()
        if base is not None and not self.background and base.increments + 1 >= self.full_every:
            base = None
        save = _Save(self._folder.next_sequence(), step, trees)
        for name, array in contents.arrays.items():
            self._add_array(save, base, name, array)
        for name, table in contents.tables.items():
            _add_table(save, base, name, table)
        self._write(save, base)

    def _intact_base(self) -> _Base | None:
        """The base, if its files are still there as they were written; else a warning that the save will be full."""
        try:
            for _ in self._folder.readers(self._base.manifest) if self._base is not None else ():
                pass
        except CheckpointError as error:
            self._base = None
            warnings.warn(f"the next save is full: {error}", CheckpointWarning, stacklevel=4)
        return self._base

    def _add_array(self, save: _Save, base: _Base | None, name: str, array: np.ndarray) -> None:
        """Plan how an array is written: whole, its changed units, or not at all."""
        if self.full_every > 1 and is_tracked(array):
            form = (array.shape, array.dtype)
            digests = self._digest(array)
            save.digests[name] = form, digests
            known = base.digests.get(name) if base is not None else None
            if base is not None and known is not None and known[0] == form:
                changed = np.flatnonzero((digests != known[1]).any(axis=1))
                before = base.manifest.entries[name]
                if not len(changed):
                    save.entries[name] = before
                    return
                stored = sum(part["count"] for part in before[1:])  # increments are at most as large as the array
                if 2 * len(changed) <= len(digests) and stored + len(changed) <= len(digests):
                    save.add(name, before, *changes_stream(name, array, changed))
                    return
        save.add(name, [], array_stream(name, array), {"tensor": name})

    def _write(self, save: _Save, base: _Base | None) -> None:
        """Write and commit; with `background`, a thread writes copies of the streams that fit into the budget."""
        writer = self._writer(save)
        room = config.memory_budget if self.background else -1
        later = []
        with contextlib.nullcontext() if writer is None else writer:
            for stream in sorted(save.streams, key=lambda stream: stream.nbytes):
                room -= stream.nbytes
                if room >= 0 or writer is None:
                    later.append(stream.snapshot())
                else:
                    write(writer, [stream])

        def finish() -> None:
            checksum = _finished(writer, later)
            self._commit(save, base, writer, checksum)
            self._compact_and_clean(save.sequence)

        if not self.background:
            finish()
            return
        thread = threading.Thread(target=self._run, args=(finish,), name="autobatch checkpoint")
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, and takes no new threads
            finish()
        else:
            self._thread = thread

    def _writer(self, save: _Save) -> TensorWriter | None:
        if not save.streams:
            return None
        return writer_of(self._folder.files, self._folder.join(save.file), save.streams, {})

    def _commit(self, save: _Save, base: _Base | None, writer: TensorWriter | None, checksum: str) -> None:
        needed = {part["file"] for parts in save.entries.values() for part in parts}
        known = base.manifest.files if base is not None else {}
        files = {name: known[name] for name in sorted(needed) if name != save.file}
        if writer is not None:
            files[save.file] = {"bytes": writer.nbytes, "header": checksum}
        manifest = Manifest(save.sequence, save.step, save.trees, save.entries, files)
        self._folder.commit(manifest)
        increments = 0 if base is None else base.increments + 1
        self._base = _Base(manifest, save.digests, save.marks, increments)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def _compact_and_clean(self, sequence: int) -> None:
        """Compact, and remove old checkpoints; if that fails the save stands, and the next save tries again."""
        try:
            if self.background and self._base is not None and self._base.increments >= self.full_every:
                sequence = self._compact()
            self._folder.clean(self.keep, sequence)
        except OSError as error:
            warnings.warn(f"old checkpoints stay in {self.folder}: {error}", CheckpointWarning, stacklevel=2)

    def _lock_folder(self) -> None:
        if self._lock is not None and self._lock.held:
            return
        self._folder.files.make_folder(self.folder)
        try:
            self._lock = self._folder.files.lock(self._folder.join("lock"))
        except BlockingIOError:
            raise CheckpointError(
                f"another saver holds {self.folder}, in this process or another: close it first; "
                "two savers would remove each other's files"
            ) from None
        self._base = None  # another saver may have saved before we got the lock

    @hiding_frames
    def wait(self) -> None:
        """Return when the background save is done.

        Raises:
            the error of the background save, if it failed; once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @hiding_frames
    def close(self) -> None:
        """Wait for the background save, then release the folder to other savers."""
        try:
            self.wait()
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoints({self.folder!r}, keep={self.keep}, full_every={self.full_every}, steps={self.steps()})"

    def steps(self) -> list[int]:
        """The steps that can be restored, in the order in which they were saved."""
        return [step for _, step, _ in self._folder.listed()]

    @hiding_frames
    def restore(
        self, params: object = None, state: object = None, step: int | None = None, *, mapped: bool = False
    ) -> Restored:
        """The parameters and state of a checkpoint, as new arrays and tables; each block that is read is verified.

        Args:
            params: a tree with the wanted structure: the saved one, or with fewer keys in its dicts and objects. It is
                not written to. Its classes and kinds of tables are used: an array restores into a table and the other
                way round, an `EmbeddingVariable` into one with other settings. None: the saved structure.
            state: likewise. The state of another optimiser than the saved one (other slots, other shapes) stays as
                given, its step count included, with a warning: the optimiser starts again.
            step: the step to restore; None: the last save.
            mapped: True: arrays are read-only and memory-mapped, so only the parts that are used are read: for serving.
                Only the files' headers are verified; `verify` checks the rest. Takes milliseconds after `compact`.

        Returns:
            (params, state, step), with the attributes `.extra` and `.initialised`.

        Raises:
            CheckpointError: there is no such checkpoint, or it is damaged: the message names the file, and the last
                good checkpoint.
            StructureError, ShapeError, DTypeError: names the first place where `params` differs from the saved tree.
        """
        self.wait()
        while True:
            sequence, name = self._find(step)
            try:
                return self._restored(self._folder.read(name), params, state, mapped)
            except CheckpointError as error:
                if name in self._folder.files.names(self.folder):  # else its saver has removed it: try again
                    raise CheckpointError(f"{error}; {self._last_good(sequence)}") from error

    def _find(self, step: int | None) -> tuple[int, str]:
        listed = self._folder.listed()
        if not listed:
            raise CheckpointError(f"no checkpoint in {self.folder}; .steps() lists those that exist")
        for sequence, own, name in reversed(listed):
            if step is None or own == step:
                return sequence, name
        raise CheckpointError(
            f"no checkpoint of step {step} in {self.folder}; there are {[own for _, own, _ in listed]}"
        )

    def _restored(self, manifest: Manifest, params: object, state: object, mapped: bool) -> Restored:
        initialised: list[str] = []
        with self._entries(manifest, mapped) as entries:
            trees = manifest.trees
            new_params = rebuild(trees["params"], ANY if params is None else params, "params", entries)
            new_state = rebuild(trees["state"], ANY if state is None else state, "state", entries, initialised)
            extra = rebuild(trees["extra"], ANY, "extra", entries)
        if initialised:
            warnings.warn(
                f"not restored from step {manifest.step}, and left as given: {'; '.join(initialised)}",
                CheckpointWarning,
                stacklevel=3,
            )
        out = Restored(new_params, new_state, manifest.step)
        out.extra, out.initialised = extra, tuple(initialised)
        return out

    def _entries(self, manifest: Manifest, mapped: bool = False) -> Entries:
        return Entries(manifest.name, manifest.entries, functools.partial(self._folder.reader, manifest), mapped)

    def _last_good(self, sequence: int) -> str:
        """Text for error messages: the latest checkpoint before a damaged one that can be restored."""
        for own, step, name in reversed(self._folder.listed()):
            if own < sequence:
                with contextlib.suppress(CheckpointError):
                    self._verify(name)
                    return f"the last good checkpoint is that of step {step}: restore(step={step})"
        return "no checkpoint before it is good"

    def _verify(self, name: str) -> None:
        for reader in self._folder.readers(self._folder.read(name)):
            reader.verify()

    @hiding_frames
    def verify(self) -> list[int]:
        """Read every file of every checkpoint, and check all checksums.

        Returns:
            The steps of the checkpoints; each can be restored.

        Raises:
            CheckpointError: names each damaged file, with the steps that need it.
        """
        self.wait()
        damaged, good = [], []
        for _, step, name in self._folder.listed():
            try:
                self._verify(name)
                good.append(step)
            except CheckpointError as error:
                damaged.append(f"step {step}: {error}")
        if damaged:
            raise CheckpointError(f"{'; '.join(damaged)}; the good steps are {good}")
        return good

    @hiding_frames
    def compact(self) -> None:
        """Merge the parts of the last checkpoint into one new file of the same step; the old parts may then be removed.

        It streams from files to a file: memory holds the keys of tables of keys, and some MiB of arrays at a time.

        Raises:
            CheckpointError: there is no checkpoint, it is damaged, or another saver holds the folder.
        """
        with self._turn:
            self.wait()
            self._lock_folder()
            self._compact_and_clean(self._compact())

    def _compact(self) -> int:
        sequence, name = self._find(None)
        manifest = self._folder.read(name)
        parts = [part for parts in manifest.entries.values() for part in parts]
        whole = len(parts) == len(manifest.entries) and all(part.get("sorted", True) for part in parts)
        if whole and len(manifest.files) <= 1:
            return sequence
        save = _Save(self._folder.next_sequence(), manifest.step, manifest.trees)
        with self._entries(manifest) as entries, making("one file of a checkpoint"):
            for entry in manifest.entries:
                save.add(entry, [], *entries.merged(entry))
            writer = self._writer(save)
            checksum = _finished(writer, save.streams)
        base = self._base
        self._commit(save, None, writer, checksum)
        if base is not None and self._base is not None and base.manifest.sequence == sequence:
            self._base.digests, self._base.marks = base.digests, base.marks
        else:
            self._base = None
        return save.sequence


def _describe_trees(given: dict[str, Any]) -> tuple[dict[str, Any], Contents]:
    contents = Contents()
    trees = {what: describe(tree, what, (what,), contents) for what, tree in given.items()}
    contents.share_memory()
    return trees, contents


def _add_table(save: _Save, base: _Base | None, name: str, table: EmbeddingVariable) -> None:
    """Plan how a table of keys is written: whole, or the changes that it recorded, or not at all."""
    mark = table.mark()
    save.marks[name] = table, mark
    known = base.marks.get(name) if base is not None else None
    changes = table.changed_since(known[1], ROWS_AT_ONCE) if known is not None and known[0] is table else None
    if base is None or changes is None:
        save.add(name, [], *whole_table(name, table))
        return
    before = base.manifest.entries[name]
    if not changes.total and not len(changes.removed):
        save.entries[name] = before
        return
    save.add(name, before, *table_stream(name, changes.total, lambda: changes.blocks, changes.removed))


def _finished(writer: TensorWriter | None, streams: Sequence[Stream]) -> str:
    """Append streams and end the file; returns its checksum, "" without a file."""
    if writer is None:
        return ""
    with writer:
        write(writer, streams)
        return writer.finish()
