"""What to write in place of names that torch, JAX and others have, for messages; a key may be several such names."""

import abc
import difflib
import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np

from autobatch.core.diagnostics import KEYWORDS, hiding_frames

MODULE = {
    "vmap vectorize function": "decorate the function of one example with @ab.batch, or call ab.map(f, examples)",
    "pmap": "ab.map(f, examples) runs all examples; ab.ray runs on several processes",
    "jit compile lax": "write plain Python: @ab.batch and ab.map compile where it pays",
    "array asarray tensor from_numpy": "use NumPy's arrays, np.array(...); ab.collate(examples) makes a batch of them",
    "numpy": "write import numpy as np: functions are written in plain NumPy",
    "random randn rand": "use np.random.default_rng(seed); `with ab.options(seed=...)` makes ab.nn.dropout repeatable",
    "manual_seed seed": "write `with ab.options(seed=...)`, and np.random.default_rng(seed) for your own numbers",
    "no_grad": "leave it out: gradients are computed only inside ab.grad and ab.value_and_grad",
    "backward GradientTape": "write value, grads = ab.value_and_grad(loss_function)(params)",
    "jacobian": "ab.grad differentiates one scalar, and ab.jvp takes one direction: call either for each row",
    "hessian": "write ab.jvp(ab.grad(f), (x,), (direction,)) for its product with a direction",
    "vjp": "write ab.grad(lambda x: (f(x) * cotangent).sum())", "value_and_gradient": "write ab.value_and_grad",
    "stack cat": "write ab.collate(examples), which also takes examples of different lengths",
    "pad_sequence": "write ab.collate(examples), or batch.to_padded()",
    "pack_sequence": "write ab.PackedBatch.from_examples(examples)", "cuda device": "everything runs on the CPU",
    "DataLoader Dataset utils": "write ab.minibatches(data, size, shuffle=True)", "tree_map": "use a comprehension",
    "Batch RaggedBatch": "write ab.collate(examples), ab.MaskedBatch or ab.PackedBatch",
}  # fmt: skip
"""Names of a whole library, and what to write instead."""

ARRAY = {
    "numpy to_numpy": "write np.asarray(x) for an array; of a batch, batch.examples(), or batch.to_padded()",
    "device cuda cpu": "leave it out: everything runs on the CPU", "norm": "write np.linalg.norm(x)",
    "to": "for a device leave it out; for a dtype write x.astype(dtype)", "head iloc": "write batch.example(i)",
    "detach": "write ab.stop_gradient(x)", "backward": "write value, grads = ab.value_and_grad(loss_function)(params)",
    "grad": "write grads = ab.grad(loss_function)(params)", "unsqueeze": "write x[:, None], or np.expand_dims(x, axis)",
    "block_until_ready": "results are ready: leave it out", "expand": "write np.broadcast_to(x, shape)",
    "requires_grad requires_grad_": "leave it out: ab.grad differentiates its function's first argument",
    "permute": "write x.transpose(axes)", "shuffle": "write ab.minibatches(batch, size, shuffle=True)",
    "float": "write x.astype(np.float32)", "append": "write ab.concat([batch, other])", "relu": "write ab.nn.relu(x)",
    "long": "write x.astype(np.int64)", "mask batch_sizes": "write batch.lengths, which has the length of each example",
    "to_dense pad": "write batch.to_padded()", "softmax": "write ab.nn.softmax(x)", "exp log": "call np.exp, np.log",
    "at": "arrays are NumPy's and are written in place: x[index] = value; np.add.at(x, index, value) adds",
    "map apply": "write ab.map(f, batch.examples()), or call a function that is decorated with @ab.batch",
    "data": "write batch.values for the values end to end, or batch.to_padded() for a padded array",
    "values": "write batch.data for the padded array, or batch.examples()", "max_length": "write batch.lengths.max()",
}  # fmt: skip
"""Attributes of a tensor."""

OPTIMIZER = {
    "step apply_gradients": "write params, state = opt.update(params, grads, state), from state = opt.init(params)",
    "zero_grad": "leave it out: each ab.grad gives new gradients, which opt.update(params, grads, state) takes",
    "param_groups": "the parameters are given to opt.update; lr may be a function of the step's number",
    "state_dict load_state_dict": "opt.init and opt.update return the state, a dict: ab.save(path, state)",
    "lr_scheduler StepLR CosineAnnealingLR": "lr may be a function of the step, lambda step: 1e-3 / (1 + step)",
    "clip_grad_norm_": "write opt = ab.optim.Adam(lr, clip_norm=1.0)",
    "minimize fit": "write grads = ab.grad(loss)(params), then opt.update(params, grads, state)",
    "apply_updates": "opt.update already writes the parameters: params, state = opt.update(params, grads, state)",
}  # fmt: skip
"""Attributes of an optimiser, and names of a package of them."""

NN = {
    "Module": "a layer is any class with float arrays as attributes and a method for one example; no base is needed",
    "Parameter": "use a NumPy array: float arrays are what ab.grad and ab.optim train", "Tanh tanh": "call np.tanh",
    "ParameterList": "use a list of arrays", "ModuleList": "use a list of layers", "ModuleDict": "use a dict of layers",
    "Sequential": "call the layers one after the other: for layer in layers: x = layer(x)", "Identity": "leave it out",
    "BatchNorm BatchNorm1d BatchNorm2d": "it mixes the examples of a batch; use ab.nn.LayerNorm, which takes one",
    "Transformer TransformerEncoder": "compose ab.nn.MultiHeadAttention, LayerNorm and Linear",
    "RNN": "write the loop, for x in xs: h = np.tanh(x @ w + h @ u), or use ab.nn.LSTM or ab.nn.GRU",
    "Conv3d": "write the few lines in NumPy, as a function of one example", "Softplus": "write np.logaddexp(0, x)",
    "MaxPool1d": "write the few lines in NumPy, as a function of one example: x.reshape(-1, size, channels).max(1)",
    "MaxPool2d": "write it in NumPy, as a function of one example: x.reshape(h, size, w, size, channels).max((1, 3))",
    "EmbeddingBag": "write ab.nn.Embedding(rows, dim)(ids).sum(0), or ab.embedding_bag",
    "CrossEntropyLoss": "write ab.nn.cross_entropy(logits, label)", "L1Loss": "write np.abs(predicted - target).mean()",
    "NLLLoss nll_loss": "write ab.nn.cross_entropy(logits, label), which takes logits", "ReLU": "call ab.nn.relu",
    "MSELoss mse_loss": "write np.mean((predicted - target) ** 2)", "LeakyReLU": "write np.where(x > 0, x, 0.01 * x)",
    "BCELoss binary_cross_entropy": "write -np.where(label, np.log(p), np.log(1 - p))",
    "BCEWithLogitsLoss binary_cross_entropy_with_logits bce_with_logits": "write np.logaddexp(0, logit) - logit*label",
    "GELU": "call the function ab.nn.gelu", "Sigmoid": "call the function ab.nn.sigmoid",
    "Softmax": "call the function ab.nn.softmax", "Dense": "use ab.nn.Linear(inputs, outputs)",
    "functional": "the functions are in ab.nn itself: ab.nn.relu, ab.nn.softmax", "Flatten": "write x.reshape(-1)",
    "utils": "ab.collate(examples) batches sequences; opt = ab.optim.Adam(lr, clip_norm=1.0) clips gradients",
}  # fmt: skip
"""Names of a package of layers."""

LAYER = {
    "parameters named_parameters": "a layer is a tree of parameters: write opt.init(layer), and ab.grad(loss)(layer)",
    "state_dict": "a layer is itself a tree of arrays: ab.save(path, layer)",
    "load_state_dict": "write layer = ab.load(path, like=layer)", "forward apply predict": "call the layer: layer(x)",
    "train": "only ab.nn.Dropout has a mode: dropout.training = True, or dropout(x, training=True)",
    "eval": "only ab.nn.Dropout has a mode: dropout.training = False, or dropout(x, training=False)",
    "to cuda cpu": "everything runs on the CPU; give a layer its dtype when you make it: dtype=np.float64",
    "zero_grad requires_grad_": "leave it out: ab.grad gives new gradients, of its function's first argument",
}  # fmt: skip
"""Attributes of a layer."""

KEYWORDS.update({name: hint for names, hint in {  # an argument of ours, or where that is not taken what to write
    "dim dims normalized_shape": "axis", "target labels": "label", "rng key generator": "seed", "keepdim": "keepdims",
    "p": "rate", "input": "x", "depth": "num_classes", "train": "training", "batch_size": "size", "learning_rate": "lr",
    "num_embeddings": "rows", "embedding_dim": "dim", "kernel_size": "width", "embed_dim hidden_size": "size",
    "in_features in_channels input_size": "inputs", "out_features out_channels": "outputs", "num_heads": "heads",
    "axis": "all elements of all examples count; np.mean(batch, axis) and the like reduce each example",
    "reduction": "it is one example's loss: ab.mean(losses), ab.sum(losses)", "device": "everything runs on the CPU",
    "ignore_index": "select the rows that count, logits[label >= 0]", "dtype": "write batch.astype(dtype)",
}.items() for name in names.split()})  # fmt: skip

_BY_NAME = {
    id(table): {name: text for names, text in table.items() for name in names.split()}
    for table in (MODULE, ARRAY, OPTIMIZER, NN, LAYER)
}


class Spelled(abc.ABCMeta):
    """The class of classes whose calls say what is taken, and add the class's `_ab_advice`, if they do not fit."""

    @property
    def __signature__(cls) -> inspect.Signature:
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])

    @hiding_frames
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


def missing(owner: str, name: str, table: dict[str, str], names: Iterable[str] = ()) -> AttributeError:
    """The error to raise for an attribute that does not exist, with what to write instead.

    Args:
        owner: as Python's own messages name it: "module 'autobatch'", "'Adam' object".
        table: one of this module; names: those that exist.

    >>> str(missing("module 'autobatch'", "jit", MODULE))
    "module 'autobatch' has no attribute 'jit': write plain Python: @ab.batch and ab.map compile where it pays"
    """
    own = _BY_NAME[id(table)]
    hint = own.get(name) or own.get(name.lower())
    if hint is None and name in vars(np) and owner.startswith("module"):
        hint = f"write np.{name}"
    elif hint is None and (inner := [each for each in names if each.lower().endswith(f".{name.lower()}")]):
        hint = f"write ab.{inner[0]}"
    elif hint is None and names:
        like = difflib.get_close_matches(name.lower(), {each.lower(): each for each in names}, 1, 0.8)
        hint = next((f"did you mean {each}?" for each in names if each.lower() in like), None)
    return AttributeError(f"{owner} has no attribute {name!r}{': ' if hint else ''}{hint or ''}", name=name)


@hiding_frames
def layer_attribute(layer: Any, name: str) -> Any:
    """`__getattr__` of the layers. It is here, in the library's code, as a layer's methods are read like the user's."""
    raise missing(f"{type(layer).__name__!r} object", name, LAYER)
