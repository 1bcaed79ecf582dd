"""Exercises of programming courses: strings, grids, graphs, tables, iterators, objects with operators."""

import collections
import heapq
import itertools

import numpy as np

from tests.programs.registry import program, vectors

COUNTS = [3, 0, 2, 5, 1]
FLOATS = [np.array(x) for x in ([3.0, 1.0, 2.0], [2.0, 5.0], [1.0], [4.0, -3.0, 2.0, 1.0], [1.0, 1.0])]
IDS = [np.array(x, np.int64) for x in ([1, 3, 2], [2, 5], [0], [4, 3, 2, 1], [1])]


@program(IDS, IDS[::-1])
def edit_distance(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0] = np.arange(len(a) + 1)
    table[0] = np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            change = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, change)
    return table[-1, -1], table


@program(["kitten", "", "abc", "flaw", "x"], ["sitting", "abc", "", "lawn", "x"])
def edit_distance_of_words(first, second):
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        after = [i]
        for j, b in enumerate(second, 1):
            after.append(min(row[j] + 1, after[-1] + 1, row[j - 1] + (a != b)))
        row = after
    return row[-1]


@program(["1+2*3", "(1+2)*3", "7", "2*(3+4)*(5)", "((1))+0"])
def calculator(text):
    place = 0

    def peek():
        return text[place] if place < len(text) else ""

    def total():
        nonlocal place
        value = product()
        while peek() == "+":
            place += 1
            value += product()
        return value

    def product():
        nonlocal place
        value = atom()
        while peek() == "*":
            place += 1
            value *= atom()
        return value

    def atom():
        nonlocal place
        if peek() == "(":
            place += 1
            value = total()
            place += 1
            return value
        start = place
        while peek().isdigit():
            place += 1
        return int(text[start:place])

    return total(), place


@program([(np.random.default_rng(i).random((4, 5)) > 0.5).astype(np.int64) for i in range(5)], COUNTS)
def game_of_life(grid, steps):
    for _ in range(steps):
        around = sum(np.roll(np.roll(grid, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
        grid = ((around == 3) | ((grid == 1) & (around == 2))).astype(np.int64)
        if not grid.any():
            break
    return grid


@program(vectors(5, 2, 4, 8, 3, seed=85, dtype=np.float64), grad=True)
def sorting_network(xs):
    x = xs.copy()
    for step in range(len(x)):
        for i in range(step % 2, len(x) - 1, 2):
            if x[i] > x[i + 1]:
                x[i], x[i + 1] = x[i + 1], x[i]
    return x


@program(FLOATS, IDS, [5, 1, 4, 7, 3])
def knapsack(values, sizes, room):
    best = [0.0] * (room + 1)
    for value, size in zip(values, sizes):
        for space in range(room, size - 1, -1):
            best[space] = max(best[space], best[space - size] + value)
    return best[room], best


class Node:
    def __init__(self, value):
        self.value = value
        self.left = self.right = None


@program(FLOATS)
def search_tree(xs):
    root = None
    for x in xs:
        if root is None:
            root = Node(x)
            continue
        at = root
        while True:
            if x < at.value:
                if at.left is None:
                    at.left = Node(x)
                    break
                at = at.left
            else:
                if at.right is None:
                    at.right = Node(x)
                    break
                at = at.right
    found = []

    def walk(node, depth):
        if node is None:
            return 0
        height = walk(node.left, depth + 1)
        found.append((node.value, depth))
        return 1 + max(height, walk(node.right, depth + 1))

    return walk(root, 0), found


@program([0, 1, 2, 3, 4], [5, 4, 3, 2, 1])
def way_through_a_grid(start, goal):
    walls = {(1, 1), (2, 3)}
    queue, seen = collections.deque([(start, 0, 0)]), {(start, 0)}
    while queue:
        x, y, steps = queue.popleft()
        if (x, y) == (goal, 4):
            return steps
        for dx, dy in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            place = x + dx, y + dy
            if 0 <= place[0] < 6 and 0 <= place[1] < 6 and place not in walls and place not in seen:
                seen.add(place)
                queue.append((*place, steps + 1))
    return -1


@program(COUNTS)
def shortest_ways(start):
    graph = {0: {1: 4, 2: 1}, 1: {3: 1}, 2: {1: 2, 3: 5}, 3: {4: 3}, 4: {0: 1}, 5: {}}
    distance, heap = {start: 0}, [(0, start)]
    while heap:
        d, node = heapq.heappop(heap)
        if d > distance[node]:
            continue
        for other, length in graph[node].items():
            if other not in distance or d + length < distance[other]:
                distance[other] = d + length
                heapq.heappush(heap, (d + length, other))
    return distance


@program(["()[]{}", "([)]", "", "((", ")"])
def brackets_that_match(text):
    opened = []
    for c in text:
        if c in "([{":
            opened.append(c)
        elif not opened or {")": "(", "]": "[", "}": "{"}[c] != opened.pop():
            return False
    return not opened


@program([[1, 0, 1, 1], [0], [1, 1, 1], [], [0, 1, 0, 1, 1, 0]])
def automaton(bits):
    table = {("a", 1): "b", ("a", 0): "a", ("b", 1): "c", ("b", 0): "a", ("c", 1): "c", ("c", 0): "b"}
    state, passed = "a", []
    for bit in bits:
        state = table[state, bit]
        passed.append(state)
    return state, passed, passed.count("c")


@program([12, 18, 7, 100, 1], [8, 27, 0, 75, 1])
def greatest_divisor_and_factors(a, b):
    x, y = (1, 0), (0, 1)
    while b:
        q, (a, b) = a // b, (b, a % b)
        x, y = y, (x[0] - q * y[0], x[1] - q * y[1])
    return a, x


@program([30, 2, 1, 60, 50])
def primes(n):
    prime = np.ones(n + 1, bool)
    prime[:2] = False
    for i in range(2, int(n**0.5) + 1):
        if prime[i]:
            prime[i * i :: i] = False
    return np.flatnonzero(prime), prime.sum()


@program([3, 1, 0, 4, 2])
def towers(n):
    moves = []

    def move(k, source, by, target):
        if k:
            move(k - 1, source, target, by)
            moves.append((source, target))
            move(k - 1, by, source, target)

    move(n, "A", "B", "C")
    return moves


@program(FLOATS, COUNTS)
def tokens_of_one_iterator(xs, n):
    tokens, groups = iter(xs), []
    for x in tokens:
        if x > 2:
            groups.append((x, next(tokens, None)))
        elif x < 0:
            break
    left = list(tokens)
    numbers = itertools.takewhile(lambda k: k < n + 2, itertools.count(n))
    return groups, left, list(numbers), list(itertools.islice(itertools.cycle([n, 1]), n))


class Polynomial:
    def __init__(self, coefficients):
        self.coefficients = coefficients

    def __call__(self, x):
        total = 0.0
        for c in self.coefficients[::-1]:
            total = total * x + c
        return total

    def __mul__(self, other):
        return Polynomial(np.convolve(self.coefficients, other.coefficients))

    def __len__(self):
        return len(self.coefficients) - 1


@program(FLOATS, FLOATS[::-1])
def products_of_polynomials(a, b):
    p, q = Polynomial(a), Polynomial(b)
    product = p * q
    larger = p if len(p) > len(q) else q
    return product.coefficients, product(0.5), larger(2.0), len(product)
