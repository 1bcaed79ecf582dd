"""Textbook algorithms: sorting in place, searches, dynamic programming, solvers, generators beside sequences."""

import dataclasses

import numpy as np

from tests.programs.registry import program, vectors

FLOATS = [np.array(x) for x in ([3.0, 1.0, 2.0], [2.0, 5.0], [], [4.0, -3.0, 2.0, 1.0], [1.0])]
IDS = [np.array(x, np.int64) for x in ([3, 1, 2], [2, 5], [], [4, 3, 2, 1], [1])]
COUNTS = [3, 0, 2, 5, 1]


@program(FLOATS, grad=True)
def bubble_sort(x):
    x = x.copy()
    for i in range(len(x)):
        for j in range(len(x) - 1 - i):
            if x[j] > x[j + 1]:
                x[j], x[j + 1] = x[j + 1], x[j]
    return x


@program(FLOATS)
def insertion_sort(x):
    x = np.array(x)
    for i in range(1, len(x)):
        key = x[i]
        j = i - 1
        while j >= 0 and x[j] > key:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = key
    return x


@program(IDS)
def quick_sort_in_place(ids):
    a = ids.copy()

    def sort(low, high):
        if low >= high:
            return
        pivot, i = a[high], low
        for j in range(low, high):
            if a[j] < pivot:
                a[i], a[j] = a[j], a[i]
                i += 1
        a[i], a[high] = a[high], a[i]
        sort(low, i - 1)
        sort(i + 1, high)

    sort(0, len(a) - 1)
    return a


@program(IDS)
def heap_in_an_array(ids):
    heap = np.zeros(8, np.int64)
    n = 0
    for value in ids:
        heap[n] = value
        k = n
        n += 1
        while k > 0 and heap[(k - 1) // 2] > heap[k]:
            parent = (k - 1) // 2
            heap[parent], heap[k] = heap[k], heap[parent]
            k = parent
    return heap[:n], n


@program(vectors(3, 3, 3, seed=8, dtype=np.float64), [0.1, 0.5, 0.01])
def descent_with_line_search(x, rate):
    steps = 0
    while np.linalg.norm(2 * x - np.sin(x)) > 1e-2 and steps < 12:
        t = rate * 8
        down = np.sin(x) - 2 * x
        while ((x + t * down) ** 2).sum() > (x**2).sum() - 0.05 * t * (down @ down):
            t *= 0.5
            if t < 1e-6:
                break
        else:
            x = x + t * down
            steps += 1
            continue
        break
    return x, steps


@program([1.0, 2.0, 0.2, -1.0], [4, 2, 3, 0])
def goes_on_from_the_else_of_a_loop(x, n):
    k = 0
    while k < n:
        t = x * 1.0
        while t > 0.5:
            t = t * 0.5
            if t < 0.6:
                break
        else:
            x = x + t
            k += 1
            continue
        break
    return x, k


@program(FLOATS, COUNTS)
def jumps_from_the_else_of_inner_loops(xs, n):
    out = []
    for i in range(n):
        for x in xs:
            if x > i + 1:
                break
        else:
            out.append(i)
            if i > 2:
                break
            continue
        for y in xs:
            if y < -1:
                out.append(-i)
                break
            if y > 3:
                continue
            out.append(y)
        else:
            continue
        break
    else:
        out.append(0.5)
    return out


def numbers(k):
    while True:
        yield k
        k += 1


def downwards(n):
    while n > 0:
        yield n
        n -= 1


@program(COUNTS, FLOATS, grad=True)
def zips_with_generators(n, xs):
    products = [a * b for a, b in zip(xs, numbers(n))]
    total = 0.0
    for i, (a, b) in enumerate(zip(downwards(n), xs)):
        if b < -2:
            break
        total += a * b * i
    for i, (a, b) in enumerate(zip(range(n), downwards(n - 1)), start=n):
        if i % 2:
            continue
        total += a - b
    for (i, a), b in zip(enumerate(downwards(n)), [1, 2, 3]):
        total += i * a + b
    return products, total, dict(zip(numbers(0), xs))


@dataclasses.dataclass(frozen=True)
class Fixed:
    h: object
    n: int = 0


@dataclasses.dataclass
class Changing:
    h: object
    n: int = 0
    log: list = dataclasses.field(default_factory=list)


@program(FLOATS, grad=True)
def replaces_fields(xs):
    s, f = Changing(np.zeros(2)), Fixed(np.ones(2))
    for x in xs:
        if x > 2:
            s = dataclasses.replace(s, h=s.h + x)
            f = dataclasses.replace(f, h=f.h * x)
        elif x < 2:
            s = dataclasses.replace(s, n=s.n + 1, log=[*s.log, s.n])
        else:
            f = dataclasses.replace(f, n=f.n + 1)
    return s, f


@program(COUNTS, FLOATS)
def an_object_of_values_or_none(n, xs):
    best = Fixed(xs.sum(), n) if n > 2 else None
    kept = Changing(xs, n) if n % 2 else None
    return best, kept


class Shape:
    scale = 2.0

    def __init__(self, width):
        self.width = width
        self.log = []

    @property
    def area(self):
        return self.width * self.scale

    @area.setter
    def area(self, value):
        self.width = value / self.scale
        self.log.append(value)

    def grow(self, k):
        if k > 1:
            self.area = self.area + k
        return self


class Square(Shape):
    scale = 1.0

    @property
    def area(self):
        return super().area ** 2

    @area.setter
    def area(self, value):
        self.width = value**0.5


@program(COUNTS, [1.5, 2.0, 0.5, 3.0, 4.0])
def methods_of_one_of_several_objects(n, x):
    shapes = [Shape(x), Square(x)]
    shape = shapes[n % 2]
    for k in range(n):
        shape = shape.grow(k)
        if shape.area > 20:
            shape = Square(1.0)
    return shape.area, len(shape.log), isinstance(shape, Square)


@program(COUNTS)
def a_spiral(n):
    m = np.zeros((n, n), int)
    row, column, down, right = 0, 0, 0, 1
    for k in range(1, n * n + 1):
        m[row, column] = k
        inside = 0 <= row + down < n and 0 <= column + right < n
        if not (inside and m[row + down, column + right] == 0):
            down, right = right, -down
        row += down
        column += right
    return m


@program(COUNTS)
def queens(n):
    def place(row, columns):
        if row == n:
            return 1
        total = 0
        for c in range(n):
            if all(c != q and abs(c - q) != row - r for r, q in enumerate(columns)):
                total += place(row + 1, [*columns, c])
        return total

    return place(0, [])


@program(IDS)
def union_find(ids):
    parent = list(range(6))

    def find(x):
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for a, b in zip([0, *ids], ids):
        first, second = find(a), find(b)
        if first != second:
            parent[first] = second
    return parent, len({find(i) for i in range(6)})
