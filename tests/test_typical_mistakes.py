"""Typical mistakes of people who come from torch, JAX and NumPy: each message says what to write instead."""

import copy
import dataclasses
import functools
import inspect
import pickle
import traceback
import types
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError

PACKAGE = str(Path(ab.__file__).parent)
decorated = ab.batch(lambda x: (x * 2).sum())
linear, embedding = ab.nn.Linear(4, 3, seed=0), ab.nn.Embedding(10, 2, seed=0)
attention = ab.nn.MultiHeadAttention(4, 2, seed=0)
masked, packed = ab.MaskedBatch.from_examples([[1.0, 2.0], [3.0]]), ab.PackedBatch.from_examples([[1.0, 2.0], [3.0]])
params, grads = {"w": np.ones(3)}, {"w": np.full(3, 0.1)}
table, sparse = ab.EmbeddingTable(np.ones((3, 2))), ab.SparseRows([0], np.ones((1, 2)), 3)
opt = ab.optim.Adam(0.1)


class PandasFrame:
    """Iterates like pandas' DataFrame, over the names of its columns."""

    def __iter__(self):
        return iter(["a", "b"])

    def iterrows(self):
        raise AssertionError


class PolarsFrame:
    """Has the methods of polars' DataFrame."""

    def iter_rows(self):
        raise AssertionError


# (what is done, the error's type, a part of its message and notes)
MISTAKES = {
    "an attribute of lists": (lambda: masked.append(np.ones(2)), AttributeError, r"write ab\.concat"),
    "an attribute of a list of arrays": (lambda: packed.append(np.ones(2)), AttributeError, r"write ab\.concat"),
    "an example that there is not": (lambda: ab.Examples(masked)[9], IndexError, "there is no example 9: there are 2"),
    "an option of torch": (lambda: ab.options(device="cpu"), TypeError, "unknown option device"),
    "a dtype of a padded batch": (
        lambda: ab.MaskedBatch.from_examples([[1.0]], dtype=np.float32), TypeError, r"write batch\.astype\(dtype\)"
    ),
    "a dtype of a packed batch": (
        lambda: ab.PackedBatch.from_examples([[1.0]], dtype=np.float32), TypeError, r"write batch\.astype\(dtype\)"
    ),
    "examples to the class of a batch": (lambda: ab.PackedBatch([[1.0]]), TypeError, "from_examples"),
    "a call for a function": (lambda: ab.grad(np.float64(3.0)), TypeError, r"write ab\.grad\(f\)\(x\)"),
    "a number for the examples": (lambda: ab.Examples(3), TypeError, "expected a sequence of examples"),
    "an array without a batch": (lambda: ab.examples(np.ones(2)), TypeError, "no batch in"),
    "strings that are numbers": (lambda: ab.hash_keys(3), TypeError, "expected a string or bytes"),
    "a float for a size of a table": (lambda: ab.EmbeddingVariable(2.5), TypeError, "expected a whole number"),
    "a folder of checkpoints": (lambda: ab.Checkpoints("x", keep=0), TypeError, "expected at least 1"),
    "words in a masked batch": (
        lambda: ab.MaskedBatch.from_examples([["a", "b"], ["c"]]), TypeError, "ab.Vocabulary or ab.hash_keys"
    ),
    "words in a packed batch": (
        lambda: ab.PackedBatch.from_examples([["a", "b"], ["c"]]), TypeError, "ab.Vocabulary or ab.hash_keys"
    ),
    "words to an embedding": (lambda: embedding(["a", "b"]), IndexError, "got words; ab.Vocabulary"),
    "words to an embedding, mapped": (
        lambda: ab.map(embedding, [["a"], ["b"]]), IndexError, "got words; ab.Vocabulary"
    ),
    "one-hot labels of integers": (
        lambda: ab.nn.cross_entropy(np.ones(3), np.array([0, 1, 0])), ValueError, r"one-hot labels pass label\.argmax"
    ),
    "rows to attend to of another size": (
        lambda: attention(np.ones((3, 4)), np.ones((3, 5))), ValueError, r"\(3, 4\) and float64 of shape \(3, 5\)"
    ),
    "torch's queries, keys and values": (
        lambda: attention(*[np.ones((3, 4))] * 3), TypeError, r"takes \(rows, 4\); masks are bools, True"
    ),
    "a mask to be added": (
        lambda: attention(np.ones((3, 4)), mask=np.triu(np.full((3, 3), -np.inf), 1)), TypeError, "masks are bools"
    ),
    "torch's sizes of attention": (
        lambda: ab.nn.MultiHeadAttention(embed_dim=4, num_heads=2), TypeError, "embed_dim: write size; for num_heads: "
    ),
    "torch's sizes of an LSTM": (
        lambda: ab.nn.LSTM(input_size=3, hidden_size=4), TypeError, "input_size: write inputs; for hidden_size: write"
    ),
    "torch's sizes of a convolution": (
        lambda: ab.nn.Conv1d(1, 2, kernel_size=3), TypeError, "for kernel_size: write width"
    ),
    "a number for a string": (lambda: ab.hash_keys([1]), TypeError, "1 is of type int; expected a string"),
    "words to a layer": (lambda: linear("abcd"), TypeError, "got words; ab.Vocabulary"),
    "None in collate": (lambda: ab.collate([np.ones(2), None]), ValueError, "nulls='drop'"),
    "None in a record": (lambda: ab.collate([{"x": 1.0}, {"x": None}]), ValueError, "nulls='drop'"),
    "None in a masked batch": (lambda: ab.MaskedBatch.from_examples([[1.0], None]), TypeError, "with nulls="),
    "None in a packed batch": (lambda: ab.PackedBatch.from_examples([[1.0], None]), TypeError, "with nulls="),
    "parameters and a keyword lr": (lambda: ab.optim.Adam(params, lr=0.1), TypeError, r"parameters go to opt\.init"),
    "a layer and lr": (lambda: ab.optim.Adam(linear, lr=0.1), TypeError, r"takes lr, .*parameters go to opt\.init"),
    "the parameters of a layer": (lambda: linear.parameters(), AttributeError, r"write opt\.init\(layer\)"),
    "learning_rate": (lambda: ab.optim.Adam(learning_rate=0.1), TypeError, "takes lr, betas, eps"),
    "beta1": (lambda: ab.optim.Adam(beta1=0.9), TypeError, "takes lr, betas, eps"),
    "SGD without lr": (lambda: ab.optim.SGD(), TypeError, "SGD takes lr, momentum"),
    "torch's RMSprop": (lambda: ab.optim.RMSprop, AttributeError, r"did you mean RMSProp\?"),
    "optax's adam": (lambda: ab.optim.adam, AttributeError, r"did you mean Adam\?"),
    "a schedule": (lambda: ab.optim.lr_scheduler, AttributeError, "lr may be a function of the step"),
    "an update without a state": (lambda: opt.update(params, grads), TypeError, "update takes params, grads"),
    "a layer's mode": (lambda: linear.eval(), AttributeError, r"dropout\.training = False"),
    "a layer's state": (lambda: linear.state_dict(), AttributeError, r"ab\.save\(path, layer\)"),
    "a layer's device": (lambda: linear.to("cuda"), AttributeError, "runs on the CPU"),
    "a layer's forward": (lambda: linear.forward(np.ones(4)), AttributeError, r"layer\(x\)"),
    "torch's rate of dropout": (lambda: ab.nn.Dropout(p=0.1), TypeError, "Dropout takes rate; for p: write rate"),
    "torch's dim of a function": (lambda: ab.nn.softmax(np.ones(3), dim=0), TypeError, "axis; for dim: write axis"),
    "a reduction of a loss": (
        lambda: ab.nn.cross_entropy(np.ones(3), 1, reduction="sum"), TypeError, r"for reduction: .*ab\.sum\(losses\)"
    ),
    "an axis of all": (lambda: ab.mean(masked, axis=0), TypeError, r"for axis: .*np\.mean\(batch, axis\)"),
    "torch's dim of all": (lambda: ab.sum(masked, dim=0), TypeError, r"for dim: .*np\.mean\(batch, axis\)"),
    "a generator": (lambda: ab.nn.Embedding(9, 2, rng=1), TypeError, "for rng: write seed"),
    "labels that all examples share": (
        lambda: ab.nn.cross_entropy(masked, np.array([0, 1])), ValueError, r"is a batch, ab\.collate\(labels\)"
    ),
    "lists of different lengths": (
        lambda: ab.batch(lambda ids: np.ones(9)[ids])([[1, 2], [3]]), ValueError, r"write f\(ab\.collate\(lists\)\)"
    ),
    "torch's sizes": (lambda: ab.nn.Linear(in_features=4, out_features=3), TypeError, "takes inputs, outputs, bias"),
    "the source of a built-in": (lambda: ab.source(len), TypeError, "is not a function written in Python"),
    "words for ids": (lambda: ab.lookup(np.ones((3, 2)), ["a"]), TypeError, r"ab\.Vocabulary\(\) makes them"),
    "words for keys": (lambda: ab.EmbeddingVariable(2)[["a"]], TypeError, r"ab\.Vocabulary\(\) makes them"),
    "a loss that is not returned": (lambda: ab.mean(ab.batch(lambda x: None)(masked)), TypeError, "is a `return` mis"),
    "negative lengths": (lambda: ab.segments.lengths_to_offsets([-1]), ValueError, r"lengths\[0\] is -1"),
    "offsets that fall": (lambda: ab.segments.offsets_to_segment_ids([3, 1]), ValueError, r"offsets\[0\] is 3"),
    "a number for a word": (lambda: ab.Vocabulary()[3], TypeError, "expected a string or bytes"),
    "an id of no word": (lambda: ab.Vocabulary(["a"]).strings([4]), IndexError, "id 4 in a vocabulary of 1"),
    "negative keys": (lambda: ab.tables.multi_hash([-1], table, table, 2), TypeError, "keys that are not negative"),
    "a batch to plain code": (lambda: np.ones(9)[packed], TypeError, r"takes it with @ab\.batch"),
    "a layer on a list": (lambda: linear([np.ones((2, 4)), np.ones((1, 4))]), ValueError, r"write f\(ab\.collate\(arr"),
    "a list for a loss": (lambda: ab.grad(lambda w: [w, w])(1.0), TypeError, r"ab\.mean\(losses\) of a list"),
    "trees of two shapes": (lambda: ab.collate([("a", ("b",)), ("a", ())]), ValueError, "map takes trees as they are"),
    "a loss beside another result": (lambda: ab.mean((masked, packed)), TypeError, r"write ab\.mean\(out\[0\]\)"),
    "losses beside other results": (lambda: ab.mean([(1.0, 2), (3.0, 4)]), TypeError, r"ab\.mean\(\[a for a, b in out"),
    "batch_first": (lambda: ab.nn.LSTM(3, 4, batch_first=True), TypeError, "LSTM takes inputs, size"),
    "a size that is missing": (lambda: ab.nn.Linear(3), TypeError, "Linear takes inputs, outputs"),
    "a loss of another library": (lambda: ab.nn.BCEWithLogitsLoss(), AttributeError, r"np\.logaddexp\(0, logit\)"),
    "torch's dim": (lambda: packed.sum(dim=0), TypeError, r"sum: got an unexpected .*'dim'; it takes a, axis, dtype"),
    "NumPy's functions": (lambda: ab.exp, AttributeError, r"write np\.exp"),
    "a misspelt name": (lambda: ab.colate, AttributeError, r"did you mean collate\?"),
    "batch_size": (lambda: ab.minibatches([1, 2], batch_size=2), TypeError, "minibatches takes data, size, shuffle"),
    "two columns": (lambda: ab.minibatches([1, 2], [0, 1], 2), TypeError, "minibatches takes data, size, shuffle"),
    "columns for a size": (lambda: ab.minibatches([1, 2], [0, 1]), ValueError, r"ab\.minibatches\(\(xs, ys\), size\)"),
    "in_axes": (lambda: ab.batch(len, in_axes=0), TypeError, "batch takes f, strict, way"),
    "parameters to grad": (lambda: ab.grad(np.sum, params), TypeError, r"argnums is dict; .*ab\.grad\(f\)\(params\)"),
    "examples by position": (lambda: ab.collate(np.ones(2), np.ones(3)), TypeError, "collate takes data, nulls"),
    "a set of examples": (lambda: ab.collate({1.0, 2.0}), TypeError, r"has no order; write sorted\(data\)"),
    "examples in the constructor": (lambda: ab.PackedBatch([[1.0]]), TypeError, r"PackedBatch\.from_examples\(list\)"),
    "explain of nothing": (lambda: ab.explain(decorated), TypeError, r"write ab\.explain\(f, examples, name=shared\)"),
    "explain of a result": (lambda: ab.explain(masked), TypeError, "got MaskedBatch first: write ab.explain"),
    "a mode by its other name": (lambda: ab.map(len, [[]], way="tracing"), TypeError, "write way='fly'"),
    "save as torch has it": (lambda: ab.save(params, "file"), TypeError, "a path and a tree, in this order; got dict"),
    "pandas' to_numpy": (lambda: packed.to_numpy(), AttributeError, r"batch\.examples\(\)"),
    "a mask": (lambda: packed.mask, AttributeError, r"write batch\.lengths"),
    "a batch as an array": (lambda: np.asarray(packed), TypeError, r"scikit-learn takes ab\.Examples\(batch\)"),
    "a frame of pandas": (lambda: ab.map(len, PandasFrame()), TypeError, r'df\.to_dict\("records"\)'),
    "a frame of polars": (lambda: ab.map(len, PolarsFrame()), TypeError, r"df\.to_dicts\(\)"),
    "a dict of columns": (lambda: ab.map(len, {"a": [1]}), TypeError, "got dict: give what all examples share"),
    "parameters to an optimiser": (lambda: ab.optim.Adam([np.ones(3)]), TypeError, r"parameters go to opt\.init"),
    "parameters and lr": (lambda: ab.optim.SGD(params, ()), TypeError, "positional|parameters go to"),
    "negative lr": (lambda: ab.optim.Adam(-0.1), ValueError, "lr=-0.1; expected at least 0"),
    "lr as text": (lambda: ab.optim.Adam("0.1"), TypeError, "is of type str; expected a number"),
    "gradients as parameters": (
        lambda: opt.update({"w": sparse}, {"w": table}, opt.init({"w": table})), TypeError, "is a gradient, SparseRows"
    ),
    "gradients and parameters swapped": (
        lambda: opt.update(grads, params, opt.init(params)), TypeError, r"exchanged; write opt.update\(params, gra"
    ),
    "state and gradients swapped": (
        lambda: opt.update(params, opt.init(params), grads), ValueError, r"opt.update\(params, grads, state\) in this"
    ),
    "no state": (lambda: opt.update(params, grads, None), ValueError, r"expected that of Adam.init\(params\)"),
    "a list of gradients": (lambda: opt.update(params, [1.0], opt.init(params)), ValueError, "expected what the param"),
    "gradients of another dtype": (
        lambda: opt.update(params, {"w": np.ones(3, np.float32)}, opt.init(params)), TypeError, r"write \.astype"
    ),
    "a layer's sizes": (lambda: linear(np.ones(5)), ValueError, r"Linear\(4, 3\) takes \(\.\.\., 4\); .*shape \(5,\)"),
    "a layer's sizes, batched": (
        lambda: linear(ab.MaskedBatch.from_examples(np.ones((2, 5)))), ValueError, r"Linear\(4, 3\) takes"
    ),
    "a layer's sizes, mapped": (lambda: ab.map(linear, [np.ones(5)]), ValueError, r"Linear\(4, 3\) takes"),
    "a vector to an LSTM": (lambda: ab.nn.LSTM(3, 4)(np.ones(3)), ValueError, r"takes \(rows, 3\); .*shape \(3,\)"),
    "an LSTM's sizes": (lambda: ab.nn.LSTM(3, 4)(np.ones((5, 2))), ValueError, r"LSTM\(3, 4\) .*shape \(5, 2\)"),
    "a GRU's sizes": (lambda: ab.nn.GRU(3, 4)(np.ones((5, 2))), ValueError, r"GRU\(3, 4\) takes \(rows, 3\)"),
    "a norm's sizes": (lambda: ab.nn.LayerNorm(4)(np.ones(5)), ValueError, r"LayerNorm\(4\) takes \(\.\.\., 4\)"),
    "a convolution's sizes": (
        lambda: ab.nn.Conv1d(2, 3, 5)(np.ones((6, 3))), ValueError, r"Conv1d\(2, 3, 5\) takes \(length, 2\)"
    ),
    "a picture without channels": (
        lambda: ab.nn.Conv2d(2, 3, 3)(np.ones((6, 6))), ValueError, r"takes \(height, width, 2\)"
    ),
    "attention's sizes": (
        lambda: ab.nn.MultiHeadAttention(8, 2)(np.ones((3, 6))), ValueError, r"takes \(rows, 8\); .*shape \(3, 6\)"
    ),
    "ids that are floats": (lambda: embedding(np.ones(2)), IndexError, "takes integer ids below 10; got float64"),
    "ids out of range": (lambda: embedding(np.array([12])), IndexError, "id 12 at position 0 .* table of 10 rows"),
    "negative ids": (lambda: embedding(np.array([-1])), IndexError, "a table has no negative ids"),
    "a size that is not an integer": (lambda: ab.nn.Linear(4.0, 3), ValueError, "expected a whole number"),
    "the gradient of integers": (lambda: ab.grad(np.sum)(np.array([1, 2])), TypeError, "make it a float"),
    "the gradient of an integer": (lambda: ab.grad(lambda x: x * x)(3), TypeError, "make it a float"),
    "an integer among parameters": (
        lambda: ab.grad(lambda p: p["w"] * p["n"])({"w": 1.0, "n": 2}), TypeError, r"p\['n'\] is int"
    ),
    "integers to an optimiser": (lambda: opt.init({"w": np.arange(3)}), TypeError, r"params\['w'\] .* make it a float"),
    "an integer to an optimiser": (lambda: opt.init([1.0, 2]), TypeError, r"params\[1\] is int"),
    "the gradient over a batch": (lambda: ab.grad(decorated)(masked), TypeError, r"ab\.map\(ab\.grad\(f\), xs\)"),
    "the gradient of a vector": (lambda: ab.grad(lambda x: x * 2)(np.ones(2)), ValueError, r"write \.sum\(\)"),
    "a result to grad": (lambda: ab.grad(decorated(np.ones(2))), TypeError, r"write ab\.grad\(f\)\(x\)"),
    "no argument to a gradient": (lambda: ab.grad(decorated)(), TypeError, "pass what is differentiated by position"),
    "a result to batch": (lambda: ab.batch(decorated(np.ones(2))), TypeError, r"write ab\.batch\(f\)\(x\)"),
    "a result to map": (lambda: ab.map(2.0, [1]), TypeError, r"write ab\.map\(f, examples\), not ab\.map\(f\(x\)"),
    "examples first to map": (lambda: ab.map([1], abs), TypeError, "takes a function and its examples; got list first"),
    "no examples to map": (lambda: ab.map(abs), TypeError, r"expected ab\.map\(f, examples, name=shared\)"),
    "a dict of batches to map": (lambda: ab.map(abs, {"x": masked}), TypeError, r"ab\.map\(f, ab\.Examples\(batch\)\)"),
    "data as what is differentiated": (
        lambda: ab.grad(lambda x, w: (x["ids"] * w).sum())({"ids": np.arange(2)}, np.ones(2)), TypeError, "argnums=0"
    ),
    "a number to map": (lambda: ab.map(abs, 5), TypeError, "takes sequences of examples by position; got int"),
    "lists of other lengths": (lambda: ab.map(np.add, [1, 2], [1]), ValueError, r"have lengths \[2, 1\]"),
    "a missing shared argument": (
        lambda: ab.map(lambda x, w: x * w, [1.0]), TypeError, r"the function takes \(x, w\); .*name=value"
    ),
    "an unknown shared argument": (
        lambda: ab.map(lambda x, w=1: x * w, [1.0], v=2), TypeError, r"takes \(x, w=1\); .*v by keyword"
    ),
    "a loop over a batch": (lambda: list(masked), TypeError, r"\.examples\(\) lists the examples"),
    "a batch as a condition": (lambda: bool(masked), TypeError, "for one number, batch.examples"),
    "a batch as a number": (lambda: float(decorated(masked)), TypeError, r"write ab\.mean\(batch\)"),
    "len of a batch": (lambda: len(masked), TypeError, r"write \.batch_size"),
    "no examples": (lambda: ab.collate([]), ValueError, "no examples"),
    "records with other keys": (lambda: ab.collate([{"a": 1}, {"b": 1}]), ValueError, "differ in the keys 'a', 'b'"),
    "records among arrays": (lambda: ab.collate([np.ones(2), {"a": 1}]), TypeError, "example 1 is .*takes records"),
    "other ranks": (lambda: ab.collate([np.ones(2), np.ones((2, 2))]), ValueError, "the same number of dimensions"),
    "batches of other sizes": (
        lambda: ab.batch(np.add)(masked, ab.MaskedBatch.from_examples([1.0, 2.0, 3.0])), ValueError, "batch.* 2.* 3 "
    ),
    "a label out of range": (lambda: ab.nn.cross_entropy(np.ones(3), 3), IndexError, "not one of the 3 classes"),
    "a negative label": (lambda: ab.nn.cross_entropy(np.ones(3), -1), IndexError, "not one of the 3 classes"),
    "a label that is a float": (lambda: ab.nn.cross_entropy(np.ones(3), 1.0), ValueError, "expected integer class ids"),
    "label and logits swapped": (lambda: ab.nn.cross_entropy(1, np.ones(3)), ValueError, r"expected \(\.\.\., C\)"),
    "one_hot out of range": (lambda: ab.nn.one_hot(5, 3), IndexError, "not one of the 3 classes"),
    "a rate of dropout": (lambda: ab.nn.Dropout(2.0), ValueError, "expected 0 <= rate < 1"),
    "minibatches of nothing": (lambda: list(ab.minibatches([1, 2], 0)), ValueError, "size=0; expected at least 1"),
    "an option's value": (lambda: ab.options(way="fast").__enter__(), TypeError, "expected one of auto, loop"),
    "an option's name": (lambda: ab.options(seeds=1).__enter__(), TypeError, "the options are blocks"),
    "an assigned option": (lambda: setattr(ab.config, "seed", 3), AttributeError, r"with ab\.options\(seed=3\)"),
    "segments without ids": (lambda: ab.segments.segment_sum(np.ones(3)), ValueError, "exactly one of segment_ids"),
    "offsets without an end": (lambda: ab.PackedBatch(np.ones(3), [0, 2]), ValueError, "append the number of values"),
    "lengths that do not add up": (
        lambda: ab.PackedBatch.from_lengths(np.ones(3), [1, 1]), ValueError, "add up to 2; expected the number of"
    ),
    "an example too far": (lambda: masked.example(7), IndexError, "no example 7: there are 2, counted from 0"),
    "records in a batch of arrays": (
        lambda: ab.MaskedBatch.from_examples([{"a": 1}]), TypeError, r"is a dict; .*ab\.collate\(examples\) takes rec"
    ),
    "a table of two sizes": (lambda: ab.EmbeddingTable(100, 16), ValueError, r"ab\.nn\.Embedding\(num_rows, dim\)"),
    "a word to a table": (lambda: table["cat"], IndexError, "integer ids, .* got words; ab.Vocabulary"),
    "lists of ids that differ": (lambda: table[[[1, 2], [3]]], ValueError, "lists of one length; got one of type list"),
    "no auxiliary output": (
        lambda: ab.grad(lambda w: w.sum(), has_aux=True)(np.ones(2)), TypeError, "auxiliary.; it returned one value"
    ),
    "gradients that are a batch": (
        lambda: opt.update(params, {"w": masked}, opt.init(params)), TypeError, r"is a batch; .* ab\.mean\(losses\)"
    ),
    "two batches to concat": (lambda: ab.concat(masked, masked), TypeError, r"all in one: concat\(\[\.\.\.\]\)"),
    "a folder that is missing": (lambda: ab.save("none/x", params), FileNotFoundError, r"os\.makedirs\('none'\) makes"),
    "a text for a checkpoint": (lambda: ab.load(__file__), OSError, "not a safetensors file as ab.save writes it"),
    "a list of one each by keyword": (
        lambda: ab.map(lambda x, y: x + y, [np.ones(2), np.ones(3)], y=[1.0, 2.0]), ValueError, r"one each is ab\.map"
    ),
    "ab.vmap": (lambda: ab.vmap, AttributeError, "@ab.batch, or call ab.map"),
    "ab.jit": (lambda: ab.jit, AttributeError, "write plain Python: .* compile where"),
    "a whole loss to explain": (lambda: ab.explain(abs, params), TypeError, r"ab\.explain\(ab\.value_and_grad\(loss\)"),
    "a layer at the top level": (lambda: ab.linear, AttributeError, r"write ab\.nn\.Linear"),
    "an optimiser at the top level": (lambda: ab.Adam, AttributeError, r"write ab\.optim\.Adam"),
    "a function of ab.nn at the top level": (lambda: ab.softmax, AttributeError, r"write ab\.nn\.softmax"),
    "ab.pmap": (lambda: ab.pmap, AttributeError, "ab.ray"),
    "ab.tensor": (lambda: ab.tensor, AttributeError, r"np\.array"),
    "a batch's numpy": (lambda: masked.numpy(), AttributeError, r"np\.asarray\(x\) .* batch\.examples\(\)"),
    "a packed batch's numpy": (lambda: packed.numpy(), AttributeError, r"np\.asarray\(x\) .* batch\.examples\(\)"),
    "a batch's device": (lambda: packed.device, AttributeError, "leave it out"),
    "a batch to a device": (lambda: masked.to("cuda"), AttributeError, r"x\.astype\(dtype\)"),
    "cuda": (lambda: packed.cuda(), AttributeError, "leave it out"),
    "backward": (lambda: decorated(masked).backward(), AttributeError, r"ab\.value_and_grad\(loss_function\)"),
    "step": (lambda: opt.step(), AttributeError, r"opt\.update\(params, grads, state\)"),
    "zero_grad": (lambda: opt.zero_grad(), AttributeError, "leave it out"),
    "BatchNorm": (lambda: ab.nn.BatchNorm, AttributeError, r"use ab\.nn\.LayerNorm"),
    "Transformer": (lambda: ab.nn.Transformer, AttributeError, r"ab\.nn\.MultiHeadAttention"),
    "an example written": (lambda: packed.__setitem__(0, np.ones(2)), UnsupportedError, "to replace an example"),
    "a padded batch's values": (lambda: masked.values, AttributeError, r"write batch\.data"),
    "the longest example": (lambda: packed.max_length, AttributeError, r"batch\.lengths\.max\(\)"),
    "sum of a batch": (lambda: sum(decorated(masked)), TypeError, r"ab\.sum\(batch\)"),
    "a batch and a list": (lambda: ab.concat([packed, [[1.0]]]), ValueError, r"ab\.collate makes a batch of a list"),
    "seed": (lambda: ab.seed(0), AttributeError, r"ab\.options\(seed=\.\.\.\)"),
    "Module": (lambda: ab.nn.Module, AttributeError, "no base is needed"),
}  # fmt: skip


logits, scores = ab.collate(np.ones((4, 3))), ab.collate(np.arange(4.0))
product = ab.batch(lambda x, params: x @ params["w"])
of_pairs = [(np.ones(3), 1.0), (np.zeros(3), 0.0)]


@ab.batch
def squared(x, y, params):
    return ((x @ params["w"] - y) ** 2).sum()


AXES = "axes of a batch are each example's"
# The same, of a first hour with NumPy, torch, JAX, pandas and scikit-learn in mind
FIRST_HOUR = {
    "np: the axis of the batch, a method": (lambda: logits.argmax(1), IndexError, AXES),
    "np: the axis of the batch, a function": (lambda: np.max(logits, axis=1), IndexError, AXES),
    "np: the axis of the batch, of ab.nn": (lambda: ab.nn.softmax(logits, axis=1), IndexError, AXES),
    "np: the axis of the batch, joined": (lambda: np.concatenate([logits, logits], axis=1), IndexError, AXES),
    "np: an example by its index": (lambda: logits[3], IndexError, r"x\.example\(i\) is one"),
    "np: examples by their indices": (lambda: logits[[0, 3]], IndexError, r"x\.example\(i\) is one"),
    "np: a column": (lambda: logits[:, 0], IndexError, r"x\.example\(i\) is one"),
    "np: an axis for ab.mean": (lambda: ab.mean(scores, 0), TypeError, r"np\.mean\(batch, axis\) reduces each"),
    "np: an f-string": (lambda: f"{scores:.2f}", TypeError, r"format '\.2f' of a batch, .* write ab\.mean"),
    "np: int of a batch": (lambda: int(scores), TypeError, r"int\(\) of a batch, which holds 4"),
    "np: a condition": (lambda: 1 if scores > 1 else 0, TypeError, r"bool\(\) of a batch, which holds 4"),
    "np: max of a batch": (lambda: max(scores), TypeError, r"\.examples\(\) lists the examples"),
    "np: sorted": (lambda: sorted(scores), TypeError, r"\.examples\(\) lists the examples"),
    "np: an array of a batch": (lambda: np.array(logits), TypeError, "NumPy functions take the batch as it is"),
    "np: the batch in the shape": (lambda: logits.reshape(4, 3), ValueError, "size 3 into shape .4, 3. in example 0"),
    "np: another type": (lambda: logits.astype("float34"), TypeError, "float34"),
    "np: a product of other sizes": (lambda: logits @ np.ones(4), ValueError, "3 and 4 in example 0"),
    "np: batches that differ": (lambda: scores + masked, ValueError, "batches of 4 and 2 examples"),
    "np: a number to collate": (lambda: ab.collate(5), TypeError, "got int; expected a sequence of examples"),
    "np: a text to collate": (lambda: ab.collate("text"), TypeError, "got str; expected a sequence of examples"),
    "torch: view": (lambda: logits.view(-1), TypeError, r"write x\.reshape"),
    "torch: relu": (lambda: logits.relu(), AttributeError, r"write ab\.nn\.relu\(x\)"),
    "torch: unsqueeze": (lambda: logits.unsqueeze(0), AttributeError, r"np\.expand_dims"),
    "torch: permute": (lambda: logits.permute(1, 0), AttributeError, r"x\.transpose"),
    "torch: detach": (lambda: logits.detach(), AttributeError, r"ab\.stop_gradient"),
    "torch: functional": (lambda: ab.nn.functional, AttributeError, r"in ab\.nn itself"),
    "torch: ReLU": (lambda: ab.nn.ReLU(), AttributeError, r"ab\.nn\.relu"),
    "torch: nll_loss": (lambda: ab.nn.nll_loss, AttributeError, r"ab\.nn\.cross_entropy"),
    "torch: no_grad": (lambda: ab.no_grad(), AttributeError, "leave it out"),
    "torch: manual_seed": (lambda: ab.manual_seed(0), AttributeError, r"ab\.options\(seed="),
    "torch: randn": (lambda: ab.randn(3), AttributeError, r"np\.random\.default_rng"),
    "torch: utils.data": (lambda: ab.utils.data, AttributeError, r"ab\.minibatches"),
    "torch: DataLoader": (lambda: ab.DataLoader, AttributeError, r"ab\.minibatches"),
    "torch: pad_sequence": (lambda: ab.pad_sequence, AttributeError, r"ab\.collate\(examples\)"),
    "torch: StepLR": (lambda: ab.optim.StepLR, AttributeError, "lr may be a function of the step"),
    "torch: clip_grad_norm_": (lambda: ab.nn.utils, AttributeError, "clip_norm=1.0"),
    "torch: the optimiser's state": (lambda: opt.state_dict(), AttributeError, r"ab\.save\(path, state\)"),
    "torch: load_state_dict": (lambda: linear.load_state_dict({}), AttributeError, r"ab\.load\(path, like=layer\)"),
    "torch: a weight to an optimiser": (lambda: ab.optim.Adam(linear.weight), TypeError, r"go to opt\.init\(params\)"),
    "torch: an id that is too large": (lambda: embedding(10), IndexError, "takes integer ids below 10"),
    "torch: logits and labels swapped": (
        lambda: ab.nn.cross_entropy(scores, logits), ValueError, r"write cross_entropy\(logits, label\)"
    ),
    "torch: labels that are floats": (
        lambda: ab.nn.cross_entropy(logits, scores), ValueError, "expected integer class ids"
    ),
    "torch: fewer labels": (lambda: ab.nn.cross_entropy(logits, packed), ValueError, "batches of . and . examples"),
    "torch: save the other way round": (lambda: ab.save(params, "x"), TypeError, "a path and a tree, in this order"),
    "jax: in_axes of a map": (lambda: ab.map(decorated, [np.ones(2)], in_axes=0), TypeError, "in_axes by keyword"),
    "jax: static_argnums": (lambda: ab.batch(decorated, static_argnums=0), TypeError, "batch takes f, strict, way"),
    "jax: lax": (lambda: ab.lax.scan, AttributeError, "write plain Python"),
    "jax: a gradient that is not called": (
        lambda: opt.update(params, ab.grad(decorated), opt.init(params)), ValueError, r"write value, grads = ab\.value"
    ),
    "jax: optax's order": (lambda: opt.update(grads, opt.init(params), params), ValueError, "in this order"),
    "jax: at": (lambda: logits.at[0].set(1), AttributeError, r"x\[index\] = value"),
    "jax: tree_map": (lambda: ab.tree_map, AttributeError, "a comprehension"),
    "jax: an argument by name": (lambda: ab.grad(decorated)(x=np.ones(2)), TypeError, "differentiated by position"),
    "jax: argnums by name": (lambda: ab.grad(decorated, argnums="x"), TypeError, "expected the position of an"),
    "jax: nothing is returned": (lambda: ab.grad(lambda x: None)(np.ones(2)), TypeError, "is a `return` missing"),
    "jax: two values": (lambda: ab.grad(lambda x: (x.sum(), x))(np.ones(2)), TypeError, "has_aux=True"),
    "jax: a mode": (lambda: ab.batch(way="jit")(len), TypeError, "expected one of auto, loop, lockstep"),
    "torch: a batch of pairs": (
        lambda: squared(ab.collate(of_pairs), params), TypeError, r"write squared\(\*ab\.collate\(examples\), \.\.\.\)"
    ),
    "torch: a list of pairs": (lambda: squared(of_pairs, params), TypeError, r"squared\(\*ab\.collate\(tuples\)\)"),
    "torch: pairs to a map": (
        lambda: ab.map(squared, of_pairs, params=params), TypeError, r"of 2: write ab\.map\(f, \*zip\(\*examples\)"
    ),
    "torch: the first example": (
        lambda: product(logits[0], params), ValueError, r"first example is batch\.example\(0\)"
    ),
    "pandas: head": (lambda: logits.head(), AttributeError, r"batch\.example\(i\)"),
    "pandas: iloc": (lambda: logits.iloc[0], AttributeError, r"batch\.example\(i\)"),
    "pandas: apply": (lambda: logits.apply(np.sum), AttributeError, r"ab\.map\(f, batch\.examples\(\)\)"),
    "pandas: a missing number": (lambda: ab.collate([1.0, None]), ValueError, "nulls='drop'"),
    "sklearn: fit": (lambda: opt.fit(logits, scores), AttributeError, r"ab\.grad\(loss\)\(params\)"),
    "sklearn: predict": (lambda: linear.predict(np.ones(4)), AttributeError, r"call the layer: layer\(x\)"),
    "sklearn: an example that is not there": (lambda: ab.Examples(logits)[[0, 9]], IndexError, "no example 9: there"),
    "sklearn: columns of other lengths": (
        lambda: list(ab.minibatches(([1.0, 2.0], [1.0]), 2)), ValueError, "column 1 has 1 examples, column 0 2"
    ),
    "sklearn: random_state": (
        lambda: ab.minibatches([1.0], 1, random_state=0), TypeError, "minibatches takes data, size, shuffle, seed"
    ),
    "a proof of nothing": (lambda: ab.testing.assert_equivalent(decorated), ValueError, "give a non-empty sequence"),
    "a report of a result": (lambda: ab.explain(scores), TypeError, "takes a function and what to call it with"),
    "a function in a file": (lambda: ab.save("x", {"f": decorated}), TypeError, r"tree\['f'\] is a .*cannot be stored"),
}  # fmt: skip
MISTAKES |= FIRST_HOUR

ROWS = {
    "labels": lambda y: scores - y, "labels first": lambda y: y - scores, "predictions": lambda y: logits.argmax() == y,
    "accuracy": lambda y: np.mean(logits.argmax() == y), "a ufunc": lambda y: np.subtract(scores, y),
}  # fmt: skip


@pytest.mark.parametrize("call", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("labels", [[0, 1, 1, 0], np.array([0, 1, 1, 0])], ids=["list", "array"])
def test_labels_that_are_no_batch_are_warned_of(call, labels):
    """Beside a batch of numbers; a bias as long as the batch, beside its vectors, is nothing of the kind."""
    with pytest.warns(UserWarning, match=r"beside a batch of 4 numbers: .* write ab\.collate\(y\)"):
        call(labels)
    call(ab.collate(labels))
    logits + np.ones(3)
    ab.collate(np.ones((4, 4))) + np.arange(4.0)
    ab.batch(lambda x, y: x - y)(scores, ab.shared(np.arange(4.0)))


def test_an_index_inside_a_decorated_function_has_no_note_about_batches():
    for way in ("lockstep", "fly", "loop"):
        for wrong in (lambda x: x[7], lambda x: x.sum(axis=2), lambda x: ab.nn.softmax(x, axis=2)):
            with pytest.raises(IndexError) as caught:  # noqa: PT011 - NumPy's own message
                ab.batch(wrong, way=way)(logits)
            assert caught.value.__notes__ == ["raised for example 0"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: logits.argmax(1),
        lambda: logits.reshape(4, 3),
        lambda: logits.astype("x"),
        lambda: logits.view(-1),
        lambda: logits.example(4),
        lambda: np.array(logits),
        lambda: ab.map(3.0, [np.ones(2)]),
    ],
)
def test_a_call_shows_the_users_line_only(call):
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        call()
    assert len(caught.traceback) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda folder: ab.nn.relu("a"),
        lambda folder: ab.nn.gelu(None),
        lambda folder: ab.nn.sigmoid({}),
        lambda folder: ab.nn.join_dims(np.ones((2, 3)), 0, "a"),
        lambda folder: ab.nn.split_dim(np.ones((2, 3)), 0, "a"),
        lambda folder: ab.serve("a"),
        lambda folder: ab.torch_function("a"),
        lambda folder: ab.jax_function("a"),
        lambda folder: ab.Checkpoints(folder).save("a", params),
        lambda folder: ab.Checkpoints(folder).save(1, object()),
        lambda folder: ab.Checkpoints(folder).restore(step="a"),
        lambda folder: ab.Batcher(decorated).submit(),
        lambda folder: ab.Batcher(decorated).swap(3),
    ],
)
def test_an_error_of_a_public_function_shows_no_code_of_the_library(call, tmp_path):
    with pytest.raises((TypeError, OSError)) as caught:
        call(tmp_path)
    assert not [entry for entry in caught.traceback if str(entry.path).startswith(PACKAGE)]


@pytest.mark.parametrize(("call", "error", "match"), MISTAKES.values(), ids=MISTAKES)
def test_the_message_says_what_to_write(call, error, match):
    with pytest.raises(error, match=match) as caught:
        call()
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert not [file for file in files if file.startswith(PACKAGE) or file == "<string>"]


def test_a_failure_for_numbers_of_a_table_has_no_note_about_an_index():
    columns = {"x": scores}
    for call in (lambda: product(columns["x"], params), lambda: product(scores, params)):
        with pytest.raises(ValueError, match="matmul") as caught:
            call()
        assert caught.value.__notes__ == ["raised for example 0"]


@pytest.mark.parametrize("way", ["auto", "loop", "fly"])
def test_a_batch_by_keyword_of_a_map_is_warned_of(way):
    """Every example gets all of it, as of any shared argument; without a warning if that is said."""
    xs = [np.ones(2), np.zeros(1)]
    for batch in (masked, packed):
        with pytest.warns(UserWarning, match=r"for one each write ab\.map\(f, examples, b\)"):
            assert all(each is batch for each in ab.map(lambda x, b: b, xs, b=batch, way=way))
        ab.map(lambda x, b: b, xs, b=ab.shared(batch), way=way)
        ab.map(lambda x, b: b, [*xs, np.ones(3)], b=batch, way=way)


def test_the_error_of_an_example_of_a_batch_that_is_mapped_is_its_own():
    def fails(x, p=None):
        raise ValueError(f"of {len(x)}")

    for shared in ({}, {"p": [1.0, 2.0]}):
        with pytest.raises(ValueError, match="of 2"):
            ab.map(fails, masked, **shared)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda b: b - [1.0, 2.0], r"\(3,4\) \(2,\)|lengths 4 and 2 in example 0"),
        (lambda b: [1.0, 2.0] * b, r"\(2,\) \(3,4\)|lengths 2 and 4 in example 0"),
        (lambda b: np.maximum(b, np.ones((5, 4))), r"\(3,4\) \(5,4\)|lengths 3 and 5 in example 0"),
        (lambda b: b.reshape(7), r"size 12 into shape \(7,\)"),
    ],
)
@pytest.mark.parametrize("layout", [ab.MaskedBatch, ab.PackedBatch])
def test_the_shapes_in_an_error_are_the_examples(call, shapes, layout):
    batch = layout.from_examples([np.ones((3, 4)), np.ones((2, 4))])
    with pytest.raises(ValueError, match=shapes) as caught:
        call(batch)
    assert {str(entry.path) for entry in caught.traceback} == {__file__}


def test_a_layer_that_gets_a_list_of_examples_names_what_it_takes():
    with pytest.raises(ValueError, match=r"inhomogeneous|could not be broadcast") as caught:
        ab.nn.GRU(4, 3, seed=0)([np.ones((3, 4)), np.ones((2, 4))])
    assert caught.value.__context__ is None
    with pytest.raises(ValueError, match="mismatch") as caught:
        ab.nn.GRU(4, 3, seed=0)(np.ones((3, 5)))
    assert caught.value.__notes__ == ["GRU(4, 3) takes (rows, 4); got float64 of shape (3, 5)"]


def test_asking_for_an_unknown_name_may_be_repeated():
    assert not any(hasattr(ab, "nothing_like_it") for _ in range(1200))  # each put one more frame below the next


def test_an_unknown_attribute_is_pythons_error():
    for owner in (ab, ab.nn, ab.optim, masked, packed, opt, linear):
        with pytest.raises(AttributeError, match=r"has no attribute 'nothing_like_it'$"):
            owner.nothing_like_it  # noqa: B018
        assert not hasattr(owner, "nothing_like_it")


def test_writing_an_example_does_not_show_the_library():
    with pytest.raises(UnsupportedError, match="to replace an example") as caught:
        packed[0] = np.ones(2)
    assert len(caught.traceback) == 1


def test_gradient_descent_by_hand():
    """A table less a sparse gradient is an array: slow, but what the formula says."""
    params = {"table": ab.EmbeddingTable(np.ones((3, 2))), "w": np.ones(2)}
    gradient = ab.grad(lambda p: (p["table"][[1, 1]] * p["w"]).sum())(params)
    new = {name: params[name] - 0.5 * gradient[name] for name in params}
    np.testing.assert_array_equal(new["table"], [[1, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal((gradient["table"] - gradient["table"]).to_dense(), np.zeros((3, 2)))


def test_a_whole_number_in_a_dataclass_is_a_setting():
    """For gradients and optimisers alike; an object of another class has only its float arrays as parameters."""
    model = dataclasses.make_dataclass("Model", ["w", "units"])(np.ones(2), 2)
    own = types.SimpleNamespace(w=np.ones(2), units=2)
    for each in (model, own):
        gradient = ab.grad(lambda m: (m.w * m.units).sum())(each)
        new, _ = ab.optim.SGD(0.5).update(each, gradient, ab.optim.SGD(0.5).init(each))
        assert new.units == 2
        np.testing.assert_array_equal(new.w, [0.0, 0.0])


def test_a_layer_in_a_model_is_named():
    def model(x, layer):
        return np.tanh(layer(x))

    with pytest.raises(ValueError, match=r"Linear\(4, 3\) takes"):
        ab.map(functools.partial(model, layer=linear), [np.ones(5), np.ones(4)])


@pytest.mark.parametrize("strings", [["a", "b"], [["a", "b"], ["c"]]])
def test_collated_strings_are_warned_of(strings):
    """In records they are not: a name beside the numbers."""
    with pytest.warns(UserWarning, match=r"ab\.Vocabulary or ab\.hash_keys, or write ab\.map\(f, strings\)"):
        batch = ab.collate(strings)
    assert batch.examples() == strings
    assert ab.collate([{"x": 1.0, "name": "a"}])["name"].examples() == ["a"]


def test_a_frame_that_is_one_example_is_warned_of():
    frame = pytest.importorskip("pandas").DataFrame({"a": [1.0, 2.0]})
    function = ab.batch(lambda x: (x * 2).sum())
    with pytest.warns(UserWarning, match=r"one example from each row write <lambda>\(ab\.collate\(df\)\)"):
        assert function(frame)["a"] == 6.0
    assert [each["a"] for each in ab.map(function, [frame, frame])] == [6.0, 6.0]


def test_the_call_of_a_class_does_not_show_the_library():
    with pytest.raises(TypeError, match="Linear takes") as caught:
        ab.nn.Linear(3)
    assert len(caught.traceback) == 1
    assert str(inspect.signature(ab.nn.Dropout)) == "(rate: float = 0.5) -> None"
    assert list(inspect.signature(ab.optim.SGD).parameters)[:2] == ["lr", "momentum"]


def test_a_pinned_mode_holds_for_gradients_and_reports():
    seen = []

    @ab.batch(way="loop")
    def pinned(x):
        seen.append(ab.config.way)
        return (x * x).sum()

    gradients = [ab.grad(pinned)(np.ones(2)), ab.value_and_grad(pinned)(np.ones(2))[1]]
    np.testing.assert_array_equal(gradients, 2 * np.ones((2, 2)))
    assert seen == ["loop"] * 2
    assert ab.explain(pinned, [np.ones(2)] * 3).way == "the loop"


def test_only_exchanged_arrays_are_said_to_be_exchanged(tmp_path):
    """The state knows the array that it was made for; copies, loaded and new parameters, and p as its own gradient."""

    def trained(params, grads, state):
        return ab.optim.SGD(0.5, momentum=0.5).update(params, grads, state)

    own, state = trained({"w": np.ones(2)}, {"w": np.ones(2)}, ab.optim.SGD(0.5, momentum=0.5).init({"w": np.ones(2)}))
    copied = {"w": own["w"].copy()}
    same, after = trained(own, own, state)
    other, after_other = trained(copied, {"w": np.full(2, 0.5)}, copy.deepcopy(after))
    for swapped in (state, after):
        with pytest.raises(UnsupportedError, match="params and grads are exchanged"):
            trained({"w": np.full(2, 0.1)}, same, swapped)
    with pytest.raises(UnsupportedError, match="params and grads are exchanged"):
        trained({"w": np.full(2, 0.1)}, other, after_other)
    trained(copied, same, after_other)  # towards other parameters, as an average of them goes
    ab.save(tmp_path / "file", (own, after))
    loaded, saved = ab.load(tmp_path / "file")
    for kept in (saved, pickle.loads(pickle.dumps(after)), dict(after)):
        trained(loaded, own, kept)
    del same, own
    trained({"w": np.full(2, 0.1)}, {"w": np.full(2, 0.1)}, state)


def affine(x, w, b=0.0, *, scale):
    return (x * w + b) * scale


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly", "compiled", "loop"])
@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((2.0,), {}), ((), {"scale": 1.0}), ((1.0,), {"q": 3, "scale": 1.0}), ((1.0, 2.0, 3.0), {"scale": 1.0}),
     ((1.0,), {"w": 1.0, "scale": 1.0})],
)  # fmt: skip
def test_a_call_that_does_not_fit_raises_what_python_raises_and_names_no_example(way, args, named):
    xs = [np.ones(2), np.ones(3)]
    with pytest.raises(TypeError) as plain:  # noqa: PT011 - Python's own message
        affine(xs[0], *args, **named)
    calls = [
        lambda: ab.batch(affine)(ab.collate(xs), *args, **named),
        lambda: ab.map(affine, xs, *[[a, a] for a in args], **named),
        lambda: ab.explain(affine, xs, *[[a, a] for a in args], **named),
    ]
    for call in calls:
        with ab.options(way=way), pytest.raises(TypeError) as caught:  # noqa: PT011
            call()
        assert str(caught.value) == str(plain.value)
        assert not any("raised for" in note for note in getattr(caught.value, "__notes__", ()))
