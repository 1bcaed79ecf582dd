"""Functions that a comprehension or a loop makes see what its variables are when they are called."""

# ruff: noqa: B023, C400 (late binding is what is tested)

import pytest

from tests.law import equals_loop_either_way as equals_loop

NUMBERS = [3, 1, 0, 4, 2]


def lambdas_of_a_list(n):
    late = [lambda: i for i in range(n)]
    own = [lambda i=i: i for i in range(n)]
    return [f() for f in late], [f() for f in own]


def lambdas_of_a_dict(n):
    late = {k: lambda: k * n for k in range(n)}
    return {k: f() for k, f in late.items()}


def lambdas_of_a_generator(n):
    late = list((lambda: i) for i in range(n))
    return [f() for f in late]


def lambdas_of_a_loop(n):
    late = []
    for i in range(n):
        late.append(lambda: i)
    return [f() for f in late]


def lambdas_of_two_loops(n):
    late = [[lambda: (i, j) for j in range(i + 1)] for i in range(n)]
    return [[f() for f in row] for row in late]


def generators_of_a_list(n):
    late = [(i * j for j in range(3)) for i in range(n)]
    return [list(items) for items in late]


def functions_called_at_once(n):
    return [max(range(n), key=lambda w: w * i % 3) for i in range(n)], [sum(i * j for j in range(3)) for i in range(n)]


PROGRAMS = [
    lambdas_of_a_list, lambdas_of_a_dict, lambdas_of_a_generator, lambdas_of_a_loop, lambdas_of_two_loops,
    generators_of_a_list, functions_called_at_once,
]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS)
def test_functions_see_what_variables_become(f):
    equals_loop(f, NUMBERS)


def test_a_comprehension_inside_of_a_comprehension_that_makes_functions():
    def f(n):
        return [late() for late in [lambda: i for i in range(n)]]

    equals_loop(f, NUMBERS, falls_back=True)
