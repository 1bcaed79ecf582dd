"""The grammar of the random programs, as data.

A form is text with <names> of other things to write there. `<s>`, `<v>`, ... of `CHOICES` and the fresh `<i>`, `<w>`,
... are chosen once per form, those of `PARTS` anew each time. On a line of its own a name may stand for several lines:
`<block>` for statements, `<loop>` for statements of a loop (in which the form's counters are known and jumps allowed).
`<counter>` is a counter of a loop around, or `n`; `<jump>` leaves the loop around, or the function.
"""

import re

BEGIN = """
def f(xs, ys, n):
    a = 0.5; b = np.float64(1.0); c = n; d = None
    u = np.zeros(2); v = np.ones(2); kept = []; table = {}; buf = np.zeros(3); total = 0; q = n
    grid = [np.zeros(2) for _ in range(2)]; pad = {'p': np.ones(2)}; o = Point(0.5, n); stack = Stack(); word = "ab"
    seen = {1}; names = {"a": 0.5}

    def step(k):
        nonlocal total
        <tick>
        return total

    def walk(k, base=1):
        return base if k < 1 else walk(k - 1, base + 1) + k
"""
BEGIN_TOGETHER = BEGIN.replace(
    "        nonlocal total\n        <tick>\n        return total\n", "        return total + k\n"
).replace("o = Point(0.5, n); stack = Stack();", "o = Pair(0.5, n);")

# What goes to the next way: programs of odd seeds have none of it, so that lanes run them together.
APART = re.compile(
    r"try:|nonlocal|match |with |<source>|counting|endless|key=|map\(|reduce|next\(|sorted|lambda|table|names|seen"
    r"|stack|word|\bo\b|Point|pop|insert|del |kept\[|:=|raise|dict|set\(|\{|<tick>|d = d|kept \+=|for \w+ in grid"
    r"|grid\[n|extend|any\(w|all\(w"
)

END = (
    "    return (a, b, c, d, u, v, kept, table, buf, len(kept), total, q, grid, pad, o, stack.items, stack.lost, word,"
    " seen, names)"
)
END_TOGETHER = END.replace(" stack.items, stack.lost,", "")

CHOICES = {
    "s": ["a", "b", "c"],
    "z": ["a", "b", "c"],
    "v": ["u", "v"],
    "op": ["+", "-", "*"],
    "k": ["n", "2", "len(ys)", "len(xs)"],
    "any": ["a", "b", "c", "q", "total", "u", "v", "(a, b)", "n"],
}
FRESH = {"i", "t", "w"}  # names that a form makes up; <i> and <t> are counters in its <loop>

PARTS = {
    "S": [
        "a", "b", "c", "<counter>", "<counter>", "n", "len(xs)", "1.5", "2", "ys.sum()", "u[0]", "v[-1]", "pick(ys, 3)",
        "total", "o.x", "len(word)", "abs(a)", "min(a, 1)", "max(b, n)", "len(stack)", "table.get(n, 0.5)",
    ],
    "V": [
        "u", "v", "xs.sum(0)", "helper(u, <k>)", "(v * <S>)", "u", "v", "grid[n % 2]", "xs.T @ np.ones(len(xs))",
    ],
    "C": [
        "n > 2", "len(xs) > 2", "a > 0", "d is None", "kept", "True", "xs.shape[1] == 2", "u[0] > 0.1", "len(ys)",
        "ys.sum() > 0 and a < 2", "n and len(xs) or a > 1", "not b > a", "0 < n <= 2", "n % 2", "a > b",
        "<V>.sum() > 0",
        "0 <= a < b", "(n == 1) == (len(ys) > 1)", "<counter> == 1", "<counter> > 1", "<counter> % 2", "<counter> < 2",
        "n in seen", "n in table", "stack", "o.far", "word.endswith('b')", "len(word) > 3", "even(n)", "a < b < c",
        "isinstance(c, int)", "any(w > 1 for w in ys)", "n in (1, 3)", "d is not None and n", "'c' in word",
        "(q := <k>) > 1 and q < 4", "0 < (q := n - 1) < 3 >= len(ys)",
    ],
    "tick": [
        "total += 1", "total = total + k", "total += k if k > 1 else 0",
        "total += 1\nif k % 2:\n    return k", "total += k\nif k % 2:\n    total = total * 2 % 1000",
        "total -= n\nif k % 2:\n    total -= n",
    ],
    "jump": ["break", "continue", "break", "continue", "<leave>"],
    "leave": ["return b, v", "raise KeyError(n)", "return a, kept, u", "return c", "return"],
    "else": ["", "", "", "else:\n    b = b + 1", "else:\n    b = b + 1\n    <leave>", "else:\n    q = 0\n    <block>"],
    "source": [
        "counting(n, <s>)", "counting(len(ys), b)", "(w * 2 for w in ys if w > <s>)", "(w.sum() + a for w in xs)",
        "(i * 0.5 for i in range(n) for j in range(i))", "both_ways(n)", "map(lambda w: w * a, ys)",
        "filter(lambda w: w > 0, ys)", "(k for k in (1, 2, n) if k != 2)",
    ],
    "risky": [
        "<s> = 6 // (n - 2)", "kept.append([1.0, 2.0, 3.0][n])", "<s> = {0: 1.0, 2: 2.0, 3: 0.5}[len(ys)]",
        "if <C>: raise ValueError(n)", "assert n > 1, n", "q = <s>", "step(1)", "<s> = ys[2]", "<s> = stack.pop()",
        "del table[n]", "q = int(word[1])", "if <C>:\n    <jump>", "<s> = table.pop(2)", "q, d = kept[:2]",
        "kept.remove(1.5)", "<s> = next(iter(ys))", "seen.remove(2)",
    ],
    "except": ["except (ArithmeticError, LookupError):", "except Exception:", "except KeyError:"],
    "handler": ["<s> = -1", "kept.append(n)", "total += 1", "total = -1", "step(n)"],
    "handlers": [
        "<except>\n    <handler>",
        "<except>\n    <handler>",
        "<except>\n    <handler>\nelse:\n    <s> = <S>",
        "<except>\n    <handler>\n<named>",
        "<except>\n    <handler>\nfinally:\n    <at_last>",
        "<except>\n    <handler>\n<named>\nelse:\n    <s> = <S>\nfinally:\n    <at_last>",
        "finally:\n    <at_last>",
    ],
    "named": [
        "except (ValueError, AssertionError) as error:\n    d = error.args[0]",
        "except (ValueError, AssertionError) as error:\n    d = error.args[0]\n    <jump>",
    ],
    "at_last": ["total += 10", "kept.append(0.5)", "<s> = <s> + 1", "u = u * 0.5", "q = 7"],
    "subject": [
        "n", "len(ys)", "(n, len(xs))", "[n % 2, n, 3]", "n % 3", "d", "Point(a, n)", "{'k': n, 'm': a}", "word[:2]",
        "Pair(n, (a, 1))", "kept[:2]",
    ],
    "case": [
        "0 | 2", "1 as q", "(0, y)", "(q, 2 | 3)", "[0, *rest]", "[1, _, 3]", "int(q)", "(y, q)", "None",
        "Point(k=0 | 1)", "Point(x=y, k=q)", "{'k': 2}", "{'k': q, **rest}", "'ab' | 'ba'", "str()", "Pair(q, (y, 1))",
        "[_, *_]",
    ],
    "guard": ["", "", " if <C>"],
    "cases": [
        "case <case><guard>:\n    <block>",
        "case <case><guard>:\n    <block>\n<cases>",
        "case <case><guard>:\n    <block>\ncase _:\n    <s> = <S>",
    ],
    "head": [
        "<i> in range(n)", "<i> in range(len(xs))", "<i> in range(3)", "<i> in range(n, -1, -1)",
        "<i> in range(1, len(ys) + 1, 2)",
    ],
    "rows": [
        "<w> in xs", "<i>, <w> in enumerate(xs)", "<i>, (<w>, z) in enumerate(zip(xs, ys))",
        "<i>, <w> in enumerate(reversed(xs))", "<w> in list(xs)", "<w>, *rest in zip(xs, ys, ys)",
    ],
    "items": [
        "<w> in ys", "<w> in reversed(ys)", "<w> in [1.0, 2.0]", "<i>, <w> in enumerate(counting(n, a))",
        "<w>, z in zip(ys, counting(3, b))", "<w> in sorted(ys)", "<w> in ys[1:]", "(<w>, z) in zip(ys, ys[1:])",
        "<w> in {i: w for i, w in enumerate(ys)}.values()", "<w> in [w for w in ys if w > 0]", "<w> in ys[:n]",
        "<i>, <w> in {1: 0.5, n: 2.0}.items()", "_, <w> in sorted(zip(ys, range(n)))",
    ],
}  # fmt: skip

# One-line statements (some of two lines), by kind; a kind is chosen first, then one of its forms.
SIMPLE = {
    "scalar": ["<s> = <S> <op> <S> * 0.5"],
    "vector": ["<v> = np.tanh(<V> + <V>)"],
    "update": ["<s> += <S>", "<v> += <V>", "<v> *= 0.5", "<v> = <v> - <S>"],
    "list": [
        "kept.append(<S>)", "kept.append(<V>)", "kept += [<S>]", "kept = [*kept, <S>]", "kept.append((<s>, <v>))",
        "kept.insert(0, n)", "kept = kept[1:]", "kept = kept[::-1]", "d = kept[-1:]", "kept.extend(ys)",
        "if kept:\n    d = kept.pop()", "d = list(enumerate(kept))", "d = [n] * 2 + [a]",
    ],
    "binding": [
        "<s>, <v> = <S>, <V>", "d = a", "d = (a, b)", "u, v = v, u", "a, b = b, a", "q, *d = [n, <S>, <S>]",
        "*d, q = (a, n, len(ys))", "(a, b), q = (<S>, <S>), n", "d = Pair(a)\nd = d._replace(right=n)", "a = b = <S>",
        "d = <s> if <C> else <v>", "<s> = <S> if <C> else <S>", "<s> = 0.5 if <C> and (q := <k>) > 1 else q",
        "d = [q for w in ys if (q := w * 2) > <s>]", "<s> = (q := n) if n > 1 else q", "<s> = <s> or 1.5",
        "d = n and <any>", "if <C>:\n    late = <S>\ntry:\n    d = late\nexcept NameError:\n    d = 'unbound'",
    ],
    "comprehension": [
        "d = [<s> for w in xs]", "d = [w * 2 for w in ys]", "d = sum([w for w in ys])", "d = {'z': <v>}",
        "d = [(i, w) for i, w in enumerate(ys) if i != 1]", "d = [w for w in ys if w > <s>]",
        "d = {i: w * <s> for i, w in enumerate(ys)}", "d = sorted({k % 3 for k in range(n)})",
        "d = [[i * j for j in range(i)] for i in range(n)]", "d = np.stack([w + 1 for w in xs])",
        "d = [w for row in xs for w in row if w > 0]", "d = tuple(k for k in range(n) if k % 2)",
        "d = dict(zip(range(3), ys))",
    ],
    "string": [
        "word = word + 'c'", "word += str(n)", "word = f'{n}:{len(ys)}'", "word = word.upper()", "word = word[::-1]",
        "word = 'ab'[n % 2] * 3", "d = word.split('b')", "word = '-'.join([str(k) for k in range(n)])",
        "d = '%d %s' % (n, word)", "d = [c for c in word]", "d = sorted(word)", "word = word.replace('b', 'xy')",
        "q = word.count('a')", "d = word.find('b')", "d = word > 'b'", "d = {c: i for i, c in enumerate(word)}",
        "d = f'{a > 0!r:>6}|{n:03d}'", "word = word.strip('0') or 'ab'", "q = ord(word[0]) if word else 0",
    ],
    "dict": [
        "table[n] = <S>", "table[n % 3] = table.get(n % 3, 0) + 1", "d = table.pop(n, None)", "d = list(table.items())",
        "table.setdefault(len(ys), n)", "names['k'] = <s>", "names[word] = n", "table = {**table, 2: <S>}",
        "if n in table:\n    del table[n]", "d = sorted(table)", "d = max(table, default=None)", "table |= {n: 1.5}",
        "table.update({0: a})", "d = {key: 1 for key in names}", "table.clear()", "d = list(names.values())",
    ],
    "set": [
        "seen.add(n)", "seen |= {len(ys)}", "seen = seen & {0, 1, 2}", "seen.discard(1)", "q = len(seen)",
        "d = sorted(seen)", "seen = seen | set(range(n))", "seen = {k for k in seen if k != 2}", "d = {n} <= seen",
        "seen = seen ^ {n, 3}", "d = sorted(set(word))",
    ],
    "object": [
        "o.x += <S>", "o.moved(<S>)", "o = Point(<S>, o.k)", "o.k = n", "o.log.append(a)", "o = replace(o, k=o.k + 1)",
        "stack.push(<S>)", "if stack:\n    <s> = stack.pop()", "q = o.k", "d = o.far", "stack.limit = n",
        "o = o.moved(n) if <C> else Point(b)", "d = isinstance(o, Point)", "o.extra = n\nd = hasattr(o, 'extra')",
        "d = Pair(a, o.x).right", "setattr(o, 'k', 3)", "d = getattr(o, 'none', n)",
    ],
    "call": [
        "<s> = step(<k>) * 0.5", "step(n)", "step(total % 7)", "d = steps(<s>, n)", "d = walk(n)",
        "q = walk(n, base=2)",
        "d = total_of(a, b, n)", "d = total_of(*ys)", "d = total_of(a, scale=b)", "d = total_of(**names)",
        "d = sorted(ys, key=lambda w: -w)", "g = lambda w, k=n: w * k + a\nd = g(b)", "d = list(map(even, range(n)))",
        "d = odd(n), even(len(ys))", "d = reduce(lambda p, w: p * 0.5 + w, ys, a)", "d = divmod(n, 3)",
        "d = round(n / 3, 1)", "d = float(n), bool(len(ys)), int(n > 1)", "d = max(ys, default=0)",
        "d = min(n, 2, len(ys))",
        "d = math.sqrt(abs(a))", "d = math.floor(b), abs(-n)", "d = list(zip(ys, range(n)))",
        "d = next(<source>, 0.5)", "d = list(<source>)", "<s> = sum(<source>)", "<s> = any(w > 1 for w in <source>)",
        "<s> = all(w < 1 for w in ys)", "<s> = next(w for w in endless(n) if w > 2)", "print(n, word, len(kept))",
    ],
    "numpy": [
        "d = ys[:n]", "d = ys[ys > 0]", "d = np.arange(n) * 0.5", "d = np.zeros(n)", "d = np.nonzero(ys > 0)[0]",
        "d = np.where(ys > 0, ys, <S>)", "d = np.cumsum(ys)", "d = np.sort(ys)[::-1]", "d = np.concatenate([ys, u])",
        "d = xs @ u", "d = np.outer(u, ys)", "d = xs.T.reshape(-1)", "d = xs.mean(1)", "d = np.array([a, b, n])",
        "d = ys.argmax() if len(ys) else -1", "d = xs[:, n % 2]", "d = xs[-1:]", "d = (ys > 0).sum()",
        "d = np.unique(ys > 0)",
        "d = np.full(2, n)", "d = np.int8(n) + np.arange(2, dtype=np.int8)", "d = ys.astype(np.float32)[:1]",
        "d = np.maximum(ys, 0).tolist()", "d = np.stack([u, v]).sum(n % 2)", "d = xs[::2]", "d = np.float32(0.5) * n",
        "d = np.arange(6).reshape(2, 3)[n % 2]", "d = ys.size, xs.ndim, ys.dtype", "d = 1j * n", "d = u @ v",
        "<s> = np.linalg.norm(<V>)", "d = np.argsort(ys)", "d = np.diff(ys)", "d = np.clip(ys, -0.5, 0.5)",
        "d = ys[np.arange(len(ys)) % 2 == 0]", "d = np.append(ys, n)", "d = np.repeat(ys, 2)", "d = np.eye(n)",
    ],
}  # fmt: skip

# Statements that write into arrays: not in programs that are differentiated on plain arrays.
WRITES = {
    "item": [
        "buf[0] = <s>",
        "buf[1] = <s>",
        "buf[2] = <s>",
        "buf[1] += 2",
        "u[0] = <s>",
        "buf[n % 3] += <S>",
        "buf = buf * 2",
        "buf[0], buf[n % 3] = buf[n % 3], buf[0]",
        "buf[1:] = buf[1:][::-1]",
        "buf[buf > 1] = 0.5",
        "buf[:] = 1",
    ],
    "held": [
        "grid[n % 2][1] += a",
        "grid[1] = grid[0] * 2",
        "d = grid[n % 2]",
        "pad['p'][n % 2] = b",
        "d = u",
        "pad['p'] = pad['p'] + 1",
        "grid.append(np.ones(2))",
        "for row in grid:\n    row[0] += 1",
    ],
}

# Statements with blocks of others in them.
COMPOUND = {
    "if": [
        "if <C>:\n    <block>",
        "if <C>:\n    <block>\nelse:\n    <v> = <V>",
        "if <C>:\n    <block>\nelif <C>:\n    <s> = <S>",
        "if <C>:\n    <block>\nelif <C>:\n    <block>\nelse:\n    <block>",
        "if <C>:\n    <block>\nif <C>:\n    <jump>",
    ],
    "loop": [
        "for <head>:\n    <loop>\n<else>",
        "for <rows>:\n    <v> = <v> * 0.5 + <w>\n    <loop>\n<else>",
        "for <items>:\n    <s> = <s> * 0.5 + <w>\n    <loop>\n<else>",
        "for <head>:\n    <loop>\n    if <C>:\n        <jump>\n<else>",
        "for <w> in <source>:\n    a = a * 0.5 + <w>\n    <loop>",
        "for <w> in endless(<s>):\n    if <w> > 3: break\n    a = a * 0.5 + <w>\n    <loop>\n<else>",
    ],
    "while": [
        "<t> = <k>\nwhile <t> > 0 and (<C>):\n    <t> -= 1\n    <loop>\n<else>",
        "<t> = len(ys) + 1\nwhile <t> > 0:\n    <t> = <t> - 1\n    <loop>\n    if <C>:\n        <jump>\n<else>",
        "<t> = n\nwhile <t> > 0 and a < 50:\n    <t> -= 1 if a > 0 else 2\n    <loop>\n<else>",
        "<t> = 0\nwhile True:\n    <t> += 1\n    if <t> > <k> or <C>:\n        break\n    <loop>",
    ],
    "try": ["try:\n    <block>\n    <risky>\n<handlers>", "try:\n    <risky>\n<handlers>"],
    "with": [
        "with Guard(<S>) as guard:\n    <block>\nq = guard.seen",
        "with Guard(<S>) as guard:\n    <block>\n    if <C>:\n        raise KeyError(n)\nq = guard.seen",
        "with Guard(<S>):\n    if <C>:\n        <jump>\n    <block>",
    ],
    "match": ["match <subject>:\n    <cases>"],
    "function": [
        "def local(k, *more):\n    if k > 1:\n        return k * a, more\n    return len(more)\nd = local(n, b)",
        "def local(k):\n    nonlocal a, q\n    for w in ys:\n        if w > k:\n            return w\n"
        "        a = a * 0.5\n        q += 1\nd = local(<s>)",
    ],
}
