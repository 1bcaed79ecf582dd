"""Replaces blocks by calls of their sites in lock-step code, and finds loops whose remaining steps can run as one op.

_ab_out_1 = _ab_block_1(h, w, x)
if _ab_out_1:
    (h,) = _ab_out_1
    _ab_out_1 = None
else:
    h = np.tanh(x @ w + h)
"""

import ast
from typing import Any

from autobatch.blocks.block_expressions import BlockForm, Names, Scope
from autobatch.blocks.finder import FoundBlock, body_function, longest_block
from autobatch.errors import Unsupported
from autobatch.lockstep.block_launch import Site
from autobatch.lockstep.block_loops import ScanSite
from autobatch.program.quote import expression, name, statements
from autobatch.program.scopes import bound_names

_LEAST_IN_A_VALUE = 3  # ops; an expression with fewer is no faster as a launch of its own


class BlockSites:
    """The blocks of one function; each is a `Site` that the rewritten code calls by name.

    Args:
        function: its definition, not rewritten yet.
        scope: the meaning of its names.
        filename: the file that it is written in.
        sites: {name: Site or ScanSite}, filled here.
    """

    def __init__(self, function: ast.FunctionDef, scope: Scope, filename: str, sites: dict[str, Any]) -> None:
        self.scope = scope
        self.filename = filename
        self.sites = sites
        bound = Names(bound_names(function.body))
        self.assignable = bound - function.ownership.written  # type: ignore[attr-defined]
        self.updatable = bound
        self._reads = 0

    def gathered(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Replace each block by a call of its site, with the block's own statements as the alternative."""
        out: list[ast.stmt] = []
        at = 0
        while at < len(body):
            block = longest_block(body[at:], self._form, self.assignable)
            out += [body[at]] if block is None else SiteCall(self, block).lines
            at += 1 if block is None else block.length
        return out

    def value(self, node: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """Make a block of a statement's last expression (a test, a return value): the lines that bind its value to a
        name, and the name. If the expression is too small for a block: no lines, and the expression itself."""
        target = f"_ab_value_{self.number}"
        assign = ast.copy_location(ast.Assign([name(target, node, ast.Store())], node), node)
        assign.live_after = Names((target,))  # type: ignore[attr-defined]
        block = FoundBlock([assign], self._form, Names((target,)))
        if not (block.is_possible and block.is_worthwhile) or block.form.count < _LEAST_IN_A_VALUE:
            return [], node
        return SiteCall(self, block).lines, name(target, node)

    def one_by_one(self, block: FoundBlock) -> list[ast.stmt]:
        """The statements of a block for values that it does not support, each of several a block of its own."""
        lines = block.fallback()
        if block.length == 1:
            return lines
        outer, read = self.scope, Names(block.form.replaced.values())
        self.scope = outer.with_names(outer.local | read, outer.bound | read, outer.rebindable)
        out: list[ast.stmt] = []
        for line in lines:
            own = FoundBlock([line], self._form, self.assignable)
            worth = own.is_possible and own.is_worthwhile and own.form.count >= _LEAST_IN_A_VALUE
            out += SiteCall(self, own).lines if worth else [line]
        self.scope = outer
        return out

    @property
    def number(self) -> int:
        """The number of the next site."""
        return len(self.sites) + 1

    def _form(self, _: Names) -> BlockForm:
        return BlockForm(self.scope, False, self._fresh, lambda node: node, updatable=self.updatable)

    def _fresh(self) -> str:
        self._reads += 1
        return f"_ab_input_{self.number}_{self._reads}"


class SiteCall:
    """The statements that replace a block and call its site.

    Attributes:
        inputs: (name, expression) for each argument of the call.
        outputs: the names bound to the results; assigned: all names that the block's statements bind.
        lines: statements that read the inputs, call the site, and run the original code if it returns nothing.
    """

    def __init__(self, blocks: BlockSites, block: FoundBlock) -> None:
        number, form, first = blocks.number, block.form, block.statements[0]
        self.at = first
        self.number = number
        self.site, out = f"_ab_block_{number}", f"_ab_out_{number}"
        self.outputs = block.outputs
        self.assigned = bound_names(block.statements)
        self.inputs = [(each.temporary or each.path[0], each.node) for each in form.inputs]
        function = body_function(form, block.returning_body(), blocks.filename, first)
        guards = list(form.guards.values())
        passed = [place for place, each in enumerate(form.inputs) if each.is_passed]
        updates = [
            place for place, each in enumerate(form.inputs) if not each.temporary and each.path[0] in form.updates
        ]
        static = [not each.number for each in form.inputs]
        blocks.sites[self.site] = Site(function, static, guards, passed, updates)
        lines: list[ast.stmt] = []
        for each in form.inputs:
            if each.temporary:
                target = name(each.temporary, each.node, ast.Store())
                lines.append(ast.copy_location(ast.Assign([target], each.node), each.node))
        call: ast.Call = expression("SITE()", first, SITE=self.site)
        call.args = [name(key, value) for key, value in self.inputs]
        targets: list[ast.expr] = [name(each, first, ast.Store()) for each in self.outputs]
        bind = ast.Assign([ast.copy_location(ast.Tuple(targets, ast.Store()), first)], name(out, first))
        lines += statements(
            "OUT = CALL\nif OUT:\n    BIND\n    OUT = None\nelse:\n    OTHERWISE",
            first, OUT=out, CALL=call, BIND=[ast.copy_location(bind, first)], OTHERWISE=blocks.one_by_one(block),
        )  # fmt: skip
        for line in lines:
            line.block = self  # type: ignore[attr-defined]
        self.lines = [ast.fix_missing_locations(line) for line in lines]


def scan_lines(
    blocks: Any, loop: str, body: list[ast.stmt], test: list[ast.stmt] | None, states: list[str], targets: set[str]
) -> list[ast.stmt]:
    """Lines for the end of a loop's body, which run the remaining steps as one op if possible (`lockstep.block_loops`).

    ```
    _ab_out_2 = _ab_scan_2(_ab_loop_1, (h, c), (x, u, h, c), (), (params,), (states,))
    if _ab_out_2:
        (h, c) = _ab_out_2
    ```

    Args:
        body: the rewritten body, each block a call of its site; test: the same for the condition of a `while`.
        states: the variables that the loop carries, writes into or that are read after it.
        targets: the variables that hold the loop's items.
    """
    if blocks is None or not states:
        return []
    try:
        return _Scan(blocks, body, test, states, targets).lines(loop)
    except Unsupported:
        return []


class _Scan:
    """The one block of a loop, and where its inputs come from at each step."""

    def __init__(
        self, blocks: Any, body: list[ast.stmt], test: list[ast.stmt] | None, states: list[str], targets: set[str]
    ) -> None:
        self.blocks = blocks
        self.targets = set(targets)
        self.reads: dict[str, ast.Subscript] = {}
        while body and (read := _read_by_item(body[0], targets)):
            self.reads.update(read)
            body = body[1:]
        self.block = _the_block(body)
        self.test = None if test is None else _the_block(test)
        self.at = self.block.at
        self.bases: list[str] = []
        self.paths: list[Any] = []
        self.looked_up: list[Any] = []
        targets = targets | {*self.reads}
        outputs, assigned = self.block.outputs, self.block.assigned
        after = [line for line in body if not hasattr(line, "block")]
        found = [(line, _stored_item(line, targets)) for line in after]
        self.stores = [each for _, each in found if each is not None]
        self.states = [each for each in states if all(each != stored for stored, _, _ in self.stores)]
        if not set(self.states) <= set(outputs) or targets & assigned or not self.states:
            raise Unsupported
        self.appends = [_append(line) for line, store in found if store is None]
        if len({each for each, _, _ in self.stores}) < len(self.stores):
            raise Unsupported
        for each, value in [*self.appends, *[(each, value) for each, _, value in self.stores]]:
            if value not in outputs or each in assigned | targets or any(each == key for key, _ in self.block.inputs):
                raise Unsupported

    def lines(self, loop: str) -> list[ast.stmt]:
        """Build the lines, and add their site to the function's sites."""
        block, test, outputs = self.block, self.test, self.block.outputs
        tested = [] if test is None else [key for key, _ in test.inputs]
        site = f"_ab_scan_{block.number}"
        carried = self._carried(block, False)
        self.blocks.sites[site] = ScanSite(
            self.blocks.sites[block.site],
            None if test is None else self.blocks.sites[test.site],
            [outputs.index(each) for each in self.states],
            carried,
            [] if test is None else self._carried(test, True),
            [place for place, (key, _) in enumerate(block.inputs) if key in self.targets]
            + [place for place, *_ in self.looked_up],
            [outputs.index(value) for _, value in self.appends],
            self.paths,
            self.looked_up,
            [(outputs.index(value), self._base(each), self._base(item)) for each, item, value in self.stores],
        )
        call = expression(
            "SITE(LOOP, STATES, VALUES, TESTED, BASES, LISTS)", self.at, SITE=site, LOOP=loop,
            STATES=self._tuple(self.states), VALUES=self._tuple([key for key, _ in block.inputs]),
            TESTED=self._tuple(tested),
            BASES=self._tuple(self.bases), LISTS=self._tuple([each for each, _ in self.appends]),
        )  # fmt: skip
        if test is not None:
            return [ast.copy_location(ast.Expr(call), self.at)]
        out = f"_ab_out_{block.number}"
        targets = ast.Tuple([name(each, self.at, ast.Store()) for each in self.states], ast.Store())
        bind = ast.Assign([ast.copy_location(targets, self.at)], name(out, self.at))
        return statements(
            "OUT = CALL\nif OUT:\n    BIND", self.at, OUT=out, CALL=call, BIND=[ast.copy_location(bind, self.at)]
        )

    def _tuple(self, names: list[str]) -> ast.expr:
        return ast.copy_location(ast.Tuple([name(each, self.at) for each in names], ast.Load()), self.at)

    def _carried(self, block: Any, of_test: bool) -> list[int | None]:
        """For each input of a block, the index of the state that it reads; None for a constant or an item."""
        out: list[int | None] = []
        for place, (key, node) in enumerate(block.inputs):
            out.append(None)
            read = self.reads.get(key) or _by_item(node, self.targets)
            if read and not of_test:
                self.looked_up.append((place, *self._path(read.value), self._path(read.slice, items=True)[0]))
            elif not isinstance(node, ast.Name):
                base, keys = self._path(node)
                self.paths.append((of_test, place, base, keys))
            elif key in self.states:
                out[-1] = self.states.index(key)
            elif key in self.block.assigned or (of_test and key in self.targets):
                raise Unsupported
        return out

    def _path(self, node: ast.expr, items: bool = False) -> tuple[int, tuple[tuple[str, Any], ...]]:
        """The index in `bases` of the name that a path starts with, and the path's keys.

        Args:
            items: it may start with an item of the loop.
        """
        keys: list[tuple[str, Any]] = []
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                keys.append(("attr", node.attr))
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                keys.append(("item", node.slice.value))
            else:
                raise Unsupported
            node = node.value
        if node.id in self.block.assigned or (node.id in self.targets and not items):
            raise Unsupported
        return self._base(node.id), tuple(keys[::-1])

    def _base(self, root: str) -> int:
        """The index of a name in `bases`."""
        if root not in self.bases:
            self.bases.append(root)
        return self.bases.index(root)


def _the_block(body: list[ast.stmt]) -> Any:
    """The only block in these statements, which must come first."""
    found = [line.block for line in body if hasattr(line, "block")]
    if not found or any(each is not found[0] for each in found) or not hasattr(body[len(found) - 1], "block"):
        raise Unsupported
    return found[0]


def _by_item(node: ast.expr, targets: set[str]) -> ast.Subscript | None:
    """The expression itself if it is `table[item]`, with an item of the loop; else None."""
    is_read = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id in targets
    return node if is_read else None  # type: ignore[return-value]


def _read_by_item(line: ast.stmt, targets: set[str]) -> dict[str, ast.Subscript]:
    """{name: `table[item]`} for a statement that binds a name to that; empty for any other statement."""
    if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and len(line.targets) == 1:
        read = _by_item(line.value, targets)
        if read is not None and line.targets[0].id not in targets:
            return {line.targets[0].id: read}
    return {}


def _stored_item(line: ast.stmt, targets: set[str]) -> tuple[str, str, str] | None:
    """The names (array, item, value) in `out[t] = value`, with an item of the loop; None for any other statement."""
    match line:
        case ast.Assign([ast.Subscript(ast.Name(array), ast.Name(item))], ast.Name(value)) if item in targets:
            return array, item, value
    return None


def _append(line: ast.stmt) -> tuple[str, str]:
    """The names (list, value) in `states.append(h)`; any other statement raises Unsupported."""
    call = line.value if isinstance(line, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        raise Unsupported
    if len(call.args) != 1 or call.keywords or not isinstance(call.func.value, ast.Name):
        raise Unsupported
    (value,) = call.args
    if not isinstance(value, ast.Name):
        raise Unsupported
    return call.func.value.id, value.id
