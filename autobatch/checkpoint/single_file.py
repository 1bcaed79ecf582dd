"""`save` and `load`: a tree in one safetensors file."""

import contextlib
import json
import os
from typing import Any

from autobatch.checkpoint.entry_reader import Entries
from autobatch.checkpoint.files import Files, making, parse
from autobatch.checkpoint.streams import array_stream, whole_table, write, writer_of
from autobatch.checkpoint.tensor_files import TensorReader
from autobatch.checkpoint.trees import ANY, Contents, describe, rebuild
from autobatch.core.diagnostics import hiding_frames


@hiding_frames
def save(path: Any, tree: object) -> None:
    """Write a tree into one file in the safetensors format; nothing in it is pickled.

    Even after a crash the file is complete or absent: it is written under another name, flushed, and then renamed.
    Any safetensors reader can read its arrays; `load` returns the same tree, bit for bit.

    Args:
        path: of the file; an existing file is replaced.
        tree: nested dicts, lists, tuples, named tuples and dataclasses of: arrays of any dtype except object, tables,
            numbers, text, None, `np.random.Generator`s, and functions and classes, which are stored by name. Arrays
            that share memory are stored once, and share memory again when they are loaded.

    Raises:
        UnsupportedError, DTypeError: a leaf that cannot be stored; the message names it, and nothing is written.

    Source: the format is that of github.com/huggingface/safetensors; docs/checkpoints.md lists what is added.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> ab.save(path, {"w": np.arange(3.0), "name": "first"})
    >>> ab.load(path)
    {'w': array([0., 1., 2.]), 'name': 'first'}
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"ab.save takes a path and a tree, in this order; got {type(path).__name__} first")
    path, files = os.fspath(path), Files()
    if not os.path.isdir(folder := os.path.dirname(path) or "."):
        raise FileNotFoundError(f"{path} is in a folder that does not exist: os.makedirs({folder!r}) makes it")
    contents = Contents()
    said = describe(tree, "tree", (), contents)
    contents.share_memory()
    streams = [array_stream(name, array) for name, array in contents.arrays.items()]
    tables = {}
    for name, table in contents.tables.items():
        stream, tables[name] = whole_table(name, table)
        streams.append(stream)
    beside = f"{path}.{os.getpid()}.part"
    with contextlib.suppress(FileNotFoundError):  # left by a process that was killed
        files.unlink(beside)
    with writer_of(files, beside, streams, {"tree": json.dumps(said), "tables": json.dumps(tables)}) as writer:
        write(writer, streams)
        writer.finish()
    try:
        files.rename(beside, path)
    except BaseException:
        files.unlink(beside)
        raise
    files.flush_folder(folder)


@hiding_frames
def load(path: Any, like: object = ANY, *, mapped: bool = False) -> Any:
    """Read the tree that `save` wrote.

    The checksum of every block that is read is verified. Nothing in the file is run or imported: a class or function
    that it names must be imported already.

    Args:
        path: of the file.
        like: a tree with the wanted structure: the saved one, or one with fewer keys in its dicts. Its classes,
            functions and types of tables are used; it is not changed. If left out, the saved structure is used.
        mapped: True: arrays are read-only and memory-mapped, so only the parts that are used are read, and only the
            header is verified; embedding variables cannot be trained.

    Returns:
        The tree, with new arrays; for a safetensors file by another writer, a dict of its arrays.

    Raises:
        CheckpointError: the file does not exist or is damaged, or names something that is not imported.
        StructureError, ShapeError, DTypeError: names the first place where `like` differs from the saved tree.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> ab.save(path, {"emb": ab.EmbeddingTable(np.eye(2)), "bias": np.zeros(3)})
    >>> ab.load(path, like={"bias": np.ones(3)})
    {'bias': array([0., 0., 0.])}
    """
    with TensorReader(Files(), os.fspath(path)) as reader:
        if "tree" not in reader.metadata:
            with making(f"the arrays of {reader.path}"):
                return {name: reader.read(name) for name in reader.tensors}
        tree = parse(reader.metadata["tree"], reader.path)
        tables = parse(reader.metadata.get("tables", "{}"), reader.path)
        entries = {name: [{"file": "", "tensor": name}] for name in reader.tensors}
        with making(f"the tables of {reader.path}"):
            entries |= {name: [part | {"file": ""}] for name, part in tables.items()}
        return rebuild(tree, like, "tree", Entries(reader.path, entries, lambda _: reader, mapped))
