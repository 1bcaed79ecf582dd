"""What to write instead of what does not run for all examples at once: one sentence for each reason that is given.

Warnings and `ab.explain` both say it, so it stands here, by the words of the reason. A reason for which nothing better
is known has none.
"""

import functools
import re

__all__ = ["remedy"]

_REMEDIES: list[tuple[str, str]] = [
    (
        r"an exception that is handled",
        "test for it before, as in `x if ok else 0.0` or `if key in d`; else keep the `try` in a function of its own",
    ),
    (r"a generator|used up by the first example|an iterator", "make a list of it, and loop over that"),
    (r"a match statement", "write the cases as if / elif"),
    (r"a class that is made", "define the class outside of the function"),
    (
        r"an assignment to a (global name|variable of another)|changes what the examples share|from outside the call",
        "return the value, and put the results together after the call",
    ),
    (r"a coroutine|asynchronous", "call it from code that is not asynchronous"),
    (
        r"draws random numbers|random generator",
        "draw by ab.nn.dropout(x, rate, seed=…), or draw before the call and give each example its numbers",
    ),
    (r"a context manager", "put the `with` around the call"),
    (r"a call of (locals|globals|vars|exec|eval)|looks at names", "name the variables themselves"),
    (r"print to a file|what they print|acts outside", "return what is to be shown, and print it after the call"),
    (
        r"vectorize|frompyfunc|apply_along_axis",
        "write it with NumPy functions on whole arrays, np.where for a choice",
    ),
    (r"np\.linalg\.(lstsq|pinv)", "solve the normal equations: np.linalg.solve(a.T @ a, a.T @ b)"),
    (r"np\.median|np\.percentile|np\.quantile|np\.partition", "sort, and take what is needed: np.sort(x)[len(x) // 2]"),
    (r"np\.unique|np\.histogram|np\.bincount", "count with ab.segment_sum or np.add.at over a fixed number of bins"),
    (
        r"differs between examples|differs by example",
        "compute with arrays of each example's own length instead; lengths, masks and np.where are arrays",
    ),
    (r"broadcast|length is 1 in some", "write the axis out: x[:, None], or repeat the value to its length"),
    (
        r"writes? into (a shared|memory|an array|a view|an argument)|written to|a write into",
        "copy it first: y = x.copy()",
    ),
    (r"catches warnings", "put `with warnings.catch_warnings()` around the call"),
    (r"has no source|changed since it was imported", "keep the function in a file, and import it again"),
    (
        r"is no function written in Python",
        "wrap it: `def g(x): return f(x)`, with NumPy functions where there are some",
    ),
    (
        r"locals and|objects? that differ|of the call is returned|is made",
        "return arrays, tuples, dicts or dataclasses of them",
    ),
    (r"leaves arrays|leaves a function", "return what is needed instead of keeping it elsewhere"),
    (
        r"has no batching rule|has no form for values that differ",
        "call it once after the batched part, or write it with functions that have a rule (np.sum, np.sort …)",
    ),
    (r"list", "build arrays: append to one list, and np.stack it after the loop"),
]  # the first that is found counts


@functools.lru_cache(maxsize=1024)
def remedy(reason: str) -> str:
    """One sentence of what to write instead; "" where nothing better is known.

    Args:
        reason: why something does not run for all examples at once, as a warning says it.

    >>> remedy("np.vectorize has no batching rule")
    'write it with NumPy functions on whole arrays, np.where for a choice'
    >>> remedy("no reason")
    ''
    """
    return next((sentence for pattern, sentence in _REMEDIES if re.search(pattern, reason)), "")
