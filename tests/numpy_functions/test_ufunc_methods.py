"""`reduce` and `accumulate` of every ufunc of NumPy and of SciPy, whether it has an op here or not."""

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same

special = pytest.importorskip("scipy.special")
UFUNCS = {
    f"{module.__name__}.{name}": each
    for module in (np, special)
    for name, each in vars(module).items()
    if isinstance(each, np.ufunc) and (each.nin, each.nout) == (2, 1)
}
X = [np.array([0.5, 1.5, 2.0, 0.25])]


@pytest.mark.parametrize("method", ["reduce", "accumulate"])
@pytest.mark.parametrize("way", ["fly", "lockstep"])
@pytest.mark.filterwarnings("ignore")
def test_a_ufunc_without_an_op_is_numpys_own(method, way):
    compared = 0
    for name, ufunc in UFUNCS.items():

        def f(x, ufunc=ufunc):
            return getattr(ufunc, method)(x)

        try:
            want = [f(x) for x in X]
        except (TypeError, RuntimeError):  # it has no such method
            continue
        with ab.options(way=way):
            assert_same(ab.map(f, X), want, name)
        compared += 1
    assert compared > 60
