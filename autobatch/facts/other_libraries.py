"""What to write in place of names that torch, JAX, TensorFlow and Keras have, for the messages of AttributeErrors."""

MODULE = {
    "vmap": "decorate the function of one example with @ab.batch, or call ab.map(f, examples)",
    "pmap": "ab.map(f, examples) runs all examples; ab.ray runs on several processes",
    "jit": "nothing is needed: @ab.batch and ab.map compile what is worth it",
    "compile": "nothing is needed: @ab.batch and ab.map compile what is worth it",
    "function": "decorate the function of one example with @ab.batch",
    "vectorize": "decorate the function of one example with @ab.batch",
    "array": "use NumPy's arrays, np.array(...); ab.collate(examples) makes a batch of them",
    "asarray": "use NumPy's arrays, np.asarray(...); ab.collate(examples) makes a batch of them",
    "tensor": "use NumPy's arrays, np.array(...); ab.collate(examples) makes a batch of them",
    "numpy": "write import numpy as np: functions are written in plain NumPy",
    "random": "use np.random.default_rng(seed); `with ab.options(seed=...)` makes ab.nn.dropout repeatable",
    "manual_seed": "write `with ab.options(seed=...)`, and np.random.default_rng(seed) for your own numbers",
    "no_grad": "nothing is needed: gradients are computed only inside ab.grad and ab.value_and_grad",
    "backward": "write value, grads = ab.value_and_grad(loss_function)(params)",
    "jacobian": "ab.grad is of one scalar and ab.jvp of one direction: call either for each row",
    "hessian": "write ab.jvp(ab.grad(f), (x,), (direction,)) for its product with a direction",
    "vjp": "write ab.grad(lambda x: (f(x) * cotangent).sum())",
    "value_and_gradient": "write ab.value_and_grad",
    "GradientTape": "write value, grads = ab.value_and_grad(loss_function)(params)",
    "stack": "write ab.collate(examples), which also takes examples of different lengths",
    "pad_sequence": "write ab.collate(examples), or batch.to_padded()",
    "pack_sequence": "write ab.PackedBatch.from_examples(examples)",
    "DataLoader": "write ab.minibatches(data, size, shuffle=True)",
    "tree_map": "write a dict comprehension, or optree.tree_map",
    "Batch": "write ab.collate(examples), ab.MaskedBatch or ab.PackedBatch",
    "RaggedBatch": "write ab.collate(examples), ab.MaskedBatch or ab.PackedBatch",
    "cuda": "everything runs on the processor",
    "device": "everything runs on the processor",
}
"""Names of a whole library, and what to write instead."""

ARRAY = {
    "numpy": "write np.asarray(x) for an array, or batch.examples() for a list with one result for each example",
    "device": "arrays are NumPy's, in the processor's memory: leave it out",
    "to": "arrays are NumPy's: leave it out for a device; write x.astype(dtype) for a dtype",
    "cuda": "arrays are NumPy's, in the processor's memory: leave it out",
    "cpu": "arrays are NumPy's, in the processor's memory: leave it out",
    "detach": "write ab.stop_gradient(x)",
    "backward": "write value, grads = ab.value_and_grad(loss_function)(params)",
    "grad": "write grads = ab.grad(loss_function)(params)",
    "requires_grad": "leave it out: ab.grad differentiates its function's first argument",
    "requires_grad_": "leave it out: ab.grad differentiates its function's first argument",
    "block_until_ready": "results are ready: leave it out",
    "permute": "write x.transpose(axes)",
    "unsqueeze": "write x[:, None], or np.expand_dims(x, axis)",
    "float": "write x.astype(np.float32)",
    "long": "write x.astype(np.int64)",
    "expand": "write np.broadcast_to(x, shape)",
    "norm": "write np.linalg.norm(x)",
    "exp": "write np.exp(x)",
    "log": "write np.log(x)",
    "relu": "write ab.nn.relu(x)",
    "softmax": "write ab.nn.softmax(x)",
    "at": "arrays are NumPy's and are written in place: x[index] = value; np.add.at(x, index, value) adds",
    "map": "write ab.map(f, batch.examples()), or call a function that is decorated with @ab.batch",
    "apply": "write ab.map(f, batch.examples()), or call a function that is decorated with @ab.batch",
    "batch_sizes": "write batch.lengths, which has the length of each example",
}
"""Attributes of a tensor."""

OPTIMIZER = {
    "step": "write params, state = opt.update(params, grads, state), with state = opt.init(params) at first",
    "zero_grad": "leave it out: each ab.grad gives new gradients, which opt.update(params, grads, state) takes",
    "param_groups": "the parameters are given to opt.update; lr may be a function of the step's number",
    "state_dict": "opt.init and opt.update return the state, an ordinary dict; ab.save(path, state) saves it",
    "load_state_dict": "the state is an ordinary dict: state = ab.load(path), then opt.update(params, grads, state)",
    "minimize": "write grads = ab.grad(loss)(params), then opt.update(params, grads, state)",
    "apply_gradients": "write params, state = opt.update(params, grads, state)",
    "apply_updates": "opt.update already writes the parameters: params, state = opt.update(params, grads, state)",
}
"""Attributes of an optimiser."""

_IN_NUMPY = "write the few lines in NumPy, as a function of one example"
NN = {
    "Module": "a layer is any class with float arrays as attributes and a method for one example; no base is needed",
    "Parameter": "use a NumPy array: float arrays are what ab.grad and ab.optim train",
    "ParameterList": "use a list of arrays",
    "ModuleList": "use a list of layers",
    "ModuleDict": "use a dict of layers",
    "Sequential": "call the layers one after the other: for layer in layers: x = layer(x)",
    "BatchNorm": "its result for one example depends on the others; use ab.nn.LayerNorm",
    "BatchNorm1d": "its result for one example depends on the others; use ab.nn.LayerNorm",
    "BatchNorm2d": "its result for one example depends on the others; use ab.nn.LayerNorm",
    "Transformer": "compose ab.nn.MultiHeadAttention, ab.nn.LayerNorm and ab.nn.Linear; the gallery has one",
    "TransformerEncoder": "compose ab.nn.MultiHeadAttention, ab.nn.LayerNorm and ab.nn.Linear; the gallery has one",
    "RNN": "write the loop, for x in xs: h = np.tanh(x @ w + h @ u), or use ab.nn.LSTM or ab.nn.GRU",
    "Conv3d": _IN_NUMPY,
    "MaxPool1d": f"{_IN_NUMPY}: x.reshape(-1, size, channels).max(1)",
    "MaxPool2d": f"{_IN_NUMPY}: x.reshape(h, size, w, size, channels).max((1, 3))",
    "EmbeddingBag": "write ab.nn.Embedding(rows, dim)(ids).sum(0), or ab.embedding_bag",
    "CrossEntropyLoss": "write ab.nn.cross_entropy(logits, label)",
    "NLLLoss": "write ab.nn.cross_entropy(logits, label), which takes logits",
    "MSELoss": "write np.mean((predicted - target) ** 2)",
    "mse_loss": "write np.mean((predicted - target) ** 2)",
    "ReLU": "call the function ab.nn.relu",
    "GELU": "call the function ab.nn.gelu",
    "Sigmoid": "call the function ab.nn.sigmoid",
    "Softmax": "call the function ab.nn.softmax",
    "Tanh": "call np.tanh",
    "tanh": "call np.tanh",
    "Flatten": "write x.reshape(-1)",
    "Identity": "leave it out",
    "functional": "the functions are in ab.nn itself: ab.nn.relu, ab.nn.softmax",
    "Dense": "use ab.nn.Linear(inputs, outputs)",
    "utils": "ab.collate(examples) batches sequences; opt = ab.optim.Adam(lr, clip_norm=1.0) clips gradients",
}
"""Names of a package of layers."""


def missing(owner: str, name: str, table: dict[str, str]) -> AttributeError:
    """The error to raise for an attribute that does not exist, with what to write instead.

    Args:
        owner: as Python's own messages name it: "module 'autobatch'", "'Adam' object".
        table: one of this module.

    >>> str(missing("module 'autobatch'", "jit", MODULE))
    "module 'autobatch' has no attribute 'jit': nothing is needed: @ab.batch and ab.map compile what is worth it"
    """
    hint = f": {table[name]}" if name in table else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)
