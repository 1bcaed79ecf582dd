"""`Checkpoints`: a folder of checkpoints of one training, saved whole or as what changed, each there or not at all.

A save takes what there is to write as streams (`streams.py`), each array whole or as what changed (`increments.py`),
writes them into one new file, and commits a manifest (`manifests.py`). What was committed last, and the digests and
marks of that moment, are the base of the next increment; they are replaced only when the next commit is done, so that a
save that failed changes nothing.
"""

import contextlib
import dataclasses
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from autobatch.checkpoint.entry_reader import Entries
from autobatch.checkpoint.files import Files, Lock
from autobatch.checkpoint.increments import Digester, changes_stream, is_tracked
from autobatch.checkpoint.manifests import Folder, Manifest
from autobatch.checkpoint.streams import ROWS_AT_ONCE, Stream, array_stream, table_stream, whole_table
from autobatch.checkpoint.tensor_files import TensorWriter
from autobatch.checkpoint.trees import ANY, Contents, describe, rebuild
from autobatch.core.config import config
from autobatch.errors import CheckpointError, CheckpointWarning
from autobatch.ops.rules.ragged_checks import whole_option
from autobatch.tables.stored import StoredTable


class _Restored(NamedTuple):
    params: Any
    state: Any
    step: int


class Restored(_Restored):
    """The result of `Checkpoints.restore`: (params, state, step), and beside these what else was saved.

    Attributes:
        params, state: the trees that were saved, or those of the structure that was asked for. step: of the training.
        extra: what was saved as `extra`.
        initialised: the places in `state` that were not saved, or not for this optimiser, and are as they were given.
    """

    extra: Any = None
    initialised: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True)
class _Base:
    """The last committed checkpoint, to which the next increment is compared.

    Attributes:
        digests: for each entry that is an array its shape, dtype and digests. marks: for each table of keys the table,
            and its name for the moment of the save. increments: how many since all was saved.
    """

    manifest: Manifest
    digests: dict[str, tuple[Any, np.ndarray]]
    marks: dict[str, tuple[StoredTable, int]]
    increments: int


@dataclasses.dataclass(slots=True)
class _Save:
    """A save in the making: what to write, and the next base."""

    sequence: int
    step: int
    trees: dict[str, Any]
    streams: list[Stream] = dataclasses.field(default_factory=list)
    entries: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    digests: dict[str, tuple[Any, np.ndarray]] = dataclasses.field(default_factory=dict)
    marks: dict[str, tuple[StoredTable, int]] = dataclasses.field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"{self.sequence:08d}.safetensors"

    def add(self, name: str, before: list[dict[str, Any]], stream: Stream, said: dict[str, Any]) -> None:
        """Add an entry that consists of an older part and a part that is written now."""
        self.streams.append(stream)
        self.entries[name] = [*before, {"file": self.file, **said}]


class Checkpoints:
    """The checkpoints of a training in a folder: parameters, tables and the optimiser's state of one step together.

    A save is new files, flushed, and then one rename; so after a crash, a `kill -9` or a power cut there is the last
    checkpoint that `save` returned from, or the one that was being committed, never a mixture. The first save of a
    process is whole; the next ones write the arrays' units that changed, found by digests at the speed of memory, and
    the keys of an `EmbeddingVariable` that changed, which it notes. docs/checkpoints.md describes the files, which
    other programs can read.

    Only one saver may have a folder; it has it from its first `save` until `close`, its end or its process's. Readers
    may be many. Use it in a `with` statement, or call `close`, so that the last background save is waited for.

    Args:
        folder: made with the first save.
        keep: how many checkpoints stay, the last ones; older ones are removed when a save is done, with the files that
            no other needs.
        full_every: of so many saves one is whole, so that no checkpoint has more parts than that; 1: every one. With
            `background` none is whole but the first: the parts are put together from the files (`compact`) instead.
        background: `save` returns when it has a copy of what is to be written; a thread writes it. Of what is larger
            than `config.memory_budget` (1 GiB) together, the rest is written before `save` returns. One save at a time:
            the next one waits. An error of the thread is raised by the next call, or by `wait`.
        files: what reads and writes files, for tests and other file systems.

    Raises:
        OptionError: `keep` or `full_every` is less than 1.

    Source: the commit by rename is SQLite's and LevelDB's; incremental checkpoints of keys, the seed's and DeepRec's.

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
        self,
        folder: Any,
        *,
        keep: int = 3,
        full_every: int = 10,
        background: bool = False,
        files: Files | None = None,
    ) -> None:
        for name, value in (("keep", keep), ("full_every", full_every)):
            whole_option(value, name)
        self.keep, self.full_every, self.background = keep, full_every, background
        self._folder = Folder(os.path.abspath(os.fspath(folder)), files or Files())
        self._digest = Digester()
        self._base: _Base | None = None
        self._lock: Lock | None = None
        self._turn = threading.Lock()  # of threads that save
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def folder(self) -> str:
        """The folder's path."""
        return self._folder.path

    def save(self, step: int, params: Any, state: Any = None, extra: Any = None) -> None:
        """Save parameters, the optimiser's state and what else belongs to a step.

        When it returns, the checkpoint survives a power cut; with `background`, when the next call or `wait` does. Of
        tables of keys with `steps_to_live`, the keys that have not been updated for longer are removed first.

        Args:
            step: the number of the step; a step that is there already is replaced, and one before the last goes on
                from there: what was saved last is what `restore` gives.
            params, state, extra: trees, as for `ab.save`. In `extra` is what else a resumed run needs: where it is in
                the data, its `np.random.Generator`.

        Raises:
            CheckpointError: another saver has the folder. UnsupportedError, DTypeError: a leaf that cannot be stored.
            OSError: what the system says of a file; the last checkpoint is as it was.
        """
        step = whole_option(step, "step", 0)
        with self._turn:
            self._save(step, params, state, extra)

    def _save(self, step: int, params: Any, state: Any, extra: Any) -> None:
        self.wait()
        self._take_folder()
        given = {"params": params, "state": state, "extra": extra}
        trees, contents = _described(given)
        if sum(table.shrink() for table in contents.tables.values() if _is_mortal(table)):
            trees, contents = _described(given)
        base = self._base
        if base is not None and not self.background and base.increments + 1 >= self.full_every:
            base = None
        save = _Save(self._folder.next_sequence(), step, trees)
        for name, array in contents.arrays.items():
            self._add_array(save, base, name, array)
        for name, table in contents.tables.items():
            _add_table(save, base, name, table)
        self._write(save, base)

    def _add_array(self, save: _Save, base: _Base | None, name: str, array: np.ndarray) -> None:
        """Plan the writing of an array: all of it, what changed, or nothing."""
        if self.full_every > 1 and is_tracked(array):
            kind = (array.shape, array.dtype)
            digests = self._digest(array)
            save.digests[name] = kind, digests
            known = base.digests.get(name) if base is not None else None
            if base is not None and known is not None and known[0] == kind:
                changed = np.flatnonzero((digests != known[1]).any(axis=1))
                before = base.manifest.entries[name]
                if not len(changed):
                    save.entries[name] = before
                    return
                stored = sum(part["count"] for part in before[1:])  # so all parts are at most twice the array
                if 2 * len(changed) <= len(digests) and stored + len(changed) <= len(digests):
                    save.add(name, before, *changes_stream(name, array, changed))
                    return
        save.add(name, [], array_stream(name, array), {"tensor": name})

    def _write(self, save: _Save, base: _Base | None) -> None:
        """Write and commit; in the background what fits into memory as a copy."""
        writer = self._writer(save)
        try:
            room = config.memory_budget if self.background else -1
            later = []
            for stream in sorted(save.streams, key=lambda stream: stream.nbytes):
                room -= stream.nbytes
                if room >= 0:
                    later.append(stream.snapshot())
                else:
                    _append(writer, stream)
        except BaseException:
            _abandon(writer)
            raise

        def finish() -> None:
            try:
                for stream in later:
                    _append(writer, stream)
                checksum = writer.finish() if writer is not None else ""
            except BaseException:
                _abandon(writer)
                raise
            self._commit(save, base, writer, checksum)
            self._behind_the_work(save.sequence)

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
        tensors = [tensor for stream in save.streams for tensor in stream.tensors]
        return TensorWriter(self._folder.files, self._folder.join(save.file), tensors, {})

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

    def _behind_the_work(self, sequence: int) -> None:
        """Tidy up after a save; if that fails the save stands, and the next one tries again."""
        try:
            if self.background and self._base is not None and self._base.increments >= self.full_every:
                sequence = self._compact()
            self._folder.clean(self.keep, sequence)
        except OSError as error:
            warnings.warn(f"old checkpoints stay in {self.folder}: {error}", CheckpointWarning, stacklevel=2)

    def _take_folder(self) -> None:
        if self._lock is not None and self._lock.held:
            return
        self._folder.files.make_folder(self.folder)
        try:
            self._lock = self._folder.files.lock(self._folder.join("lock"))
        except BlockingIOError:
            raise CheckpointError(
                f"another saver has {self.folder}: a process that runs, or another Checkpoints of this one, which has "
                "to be closed; two would remove each other's files"
            ) from None
        self._base = None  # while it was not ours, another may have saved

    def wait(self) -> None:
        """Return when the background save is done.

        Raises:
            what the save failed with; once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for the background save, and let another saver have the folder."""
        try:
            self.wait()
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoints({self.folder!r}, keep={self.keep}, full_every={self.full_every}, steps={self.steps()})"

    def steps(self) -> list[int]:
        """The steps that can be restored, in the order in which they were saved."""
        return [step for _, step, _ in self._folder.listed()]

    def restore(
        self, params: Any = None, state: Any = None, step: int | None = None, *, mapped: bool = False
    ) -> Restored:
        """The parameters and state of a checkpoint, as new arrays and tables; every block that is read is checked.

        Args:
            params: a tree of the structure that is wanted, of which nothing is written: that which was saved, or with
                fewer keys in its dicts and objects. Its classes and kinds of tables are taken: an array for a table and
                the other way round, other settings of an `EmbeddingVariable`. None: what was saved.
            state: likewise. An optimiser's state that is not the one that was saved (other slots, other shapes) stays
                as it is given, its number of steps too, with a warning: it begins anew.
            step: which one; None: the last that was saved.
            mapped: arrays are read-only and lie in the files, of which only what is looked at is read: for serving. Of
                the files only the headers are checked; `verify` checks the rest. After `compact` it takes milliseconds.

        Returns:
            (params, state, step), which has `.extra` and `.initialised` too.

        Raises:
            CheckpointError: there is no such checkpoint; or it is damaged: the message names the file, and the last
                good checkpoint.
            StructureError, ShapeError, DTypeError: names the first place where `params` differs from what was saved.
        """
        self.wait()
        while True:
            sequence, name = self._found(step)
            try:
                return self._restored(self._folder.read(name), params, state, mapped)
            except CheckpointError as error:
                if name in self._folder.files.names(self.folder):  # not removed meanwhile, by its saver
                    raise CheckpointError(f"{error}; {self._last_good(sequence)}") from error

    def _found(self, step: int | None) -> tuple[int, str]:
        listed = self._folder.listed()
        if not listed:
            raise CheckpointError(f"no checkpoint in {self.folder}; .steps() says which there are")
        for sequence, own, name in reversed(listed):
            if step is None or own == step:
                return sequence, name
        raise CheckpointError(
            f"no checkpoint of step {step} in {self.folder}; there are {[own for _, own, _ in listed]}"
        )

    def _restored(self, manifest: Manifest, params: Any, state: Any, mapped: bool) -> Restored:
        initialised: list[str] = []
        with Entries(self._folder, manifest, mapped) as entries:
            trees = manifest.trees
            new_params = rebuild(trees["params"], ANY if params is None else params, "params", entries)
            new_state = rebuild(trees["state"], ANY if state is None else state, "state", entries, initialised)
            extra = rebuild(trees["extra"], ANY, "extra", entries)
        if initialised:
            warnings.warn(
                f"not restored from step {manifest.step}, and as it was given: {'; '.join(initialised)}",
                CheckpointWarning,
                stacklevel=3,
            )
        out = Restored(new_params, new_state, manifest.step)
        out.extra, out.initialised = extra, tuple(initialised)
        return out

    def _last_good(self, sequence: int) -> str:
        """The checkpoint before a damaged one that can be restored, for messages."""
        for own, step, name in reversed(self._folder.listed()):
            if own < sequence:
                with contextlib.suppress(CheckpointError):
                    self._verify(name)
                    return f"the last good checkpoint is that of step {step}: restore(step={step})"
        return "no checkpoint before it is good"

    def _verify(self, name: str) -> None:
        for reader in self._folder.readers(self._folder.read(name)):
            reader.verify()

    def verify(self) -> list[int]:
        """Read every file of every checkpoint.

        Returns:
            The steps, all of which can be restored.

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
            raise CheckpointError(f"{'; '.join(damaged)}; good are the steps {good}")
        return good

    def compact(self) -> None:
        """Put the last checkpoint together from its parts: one new file, the same step; then the old parts may go.

        It reads files and writes one; of tables of keys only the keys are in memory, of arrays some MiB at a time.

        Raises:
            CheckpointError: there is no checkpoint, it is damaged, or another saver has the folder.
        """
        with self._turn:
            self.wait()
            self._take_folder()
            self._behind_the_work(self._compact())

    def _compact(self) -> int:
        sequence, name = self._found(None)
        manifest = self._folder.read(name)
        whole = all(len(parts) == 1 and parts[0].get("sorted", True) for parts in manifest.entries.values())
        if whole and len(manifest.files) <= 1:
            return sequence
        save = _Save(self._folder.next_sequence(), manifest.step, manifest.trees)
        with Entries(self._folder, manifest) as entries:
            for entry in manifest.entries:
                save.add(entry, [], *entries.merged(entry))
            writer = self._writer(save)
            try:
                for stream in save.streams:
                    _append(writer, stream)
                checksum = writer.finish() if writer is not None else ""
            except BaseException:
                _abandon(writer)
                raise
        base = self._base
        self._commit(save, None, writer, checksum)
        if base is not None and self._base is not None and base.manifest.sequence == sequence:
            self._base.digests, self._base.marks = base.digests, base.marks
        else:
            self._base = None
        return save.sequence


def _described(given: dict[str, Any]) -> tuple[dict[str, Any], Contents]:
    contents = Contents()
    trees = {what: describe(tree, what, (what,), contents) for what, tree in given.items()}
    contents.share_memory()
    return trees, contents


def _is_mortal(table: Any) -> bool:
    return getattr(table, "steps_to_live", None) is not None


def _add_table(save: _Save, base: _Base | None, name: str, table: StoredTable) -> None:
    """Plan the writing of a table of keys: all of it, or what it says has changed."""
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
    stream, said = table_stream(name, changes.total, lambda: changes.blocks, changes.removed)
    if changes.total and said["columns"].keys() != before[0]["columns"].keys() and before[0]["count"]:
        stream, said = whole_table(name, table)
        before = []
    save.add(name, before, stream, said)


def _append(writer: TensorWriter | None, stream: Stream) -> None:
    if writer is not None:
        for name, piece in stream.pieces():
            writer.append(name, piece)


def _abandon(writer: TensorWriter | None) -> None:
    if writer is not None:
        with contextlib.suppress(OSError):  # the first error is the one to be raised; the next save removes the file
            writer.abandon()
