"""Blocks of a function in lock-step: where they are, and the loops whose remaining steps can run as one op.

_ab_out_1 = _ab_block_1(h, w, x)
if _ab_out_1:
    (h,) = _ab_out_1
    _ab_out_1 = None
else:
    h = np.tanh(x @ w + h)
"""

from collections.abc import Iterable, Sequence
from typing import Any

from autobatch.blocks.block_expressions import BlockForm
from autobatch.blocks.finder import FoundBlock, body_function, longest_block
from autobatch.errors import Unsupported
from autobatch.lockstep.block_launch import LaneBlock
from autobatch.lockstep.block_loops import Ahead, LaneScan
from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds
from autobatch.program.scopes import Scope

_LEAST_IN_A_VALUE = 3  # ops; an expression with fewer is no faster as a launch of its own


class BlockLine:
    """A block in the place of its statements.

    Attributes:
        at: where it was written; number: of its site; site, out: the names of the site and of what it returns.
        inputs: (name, value) for each argument of the call. before: (name, value) of those evaluated first.
        outputs: the names bound to the results; assigned: all names that the block's statements bind.
        otherwise: the statements to run if the site returns nothing.
    """

    def __init__(self, number: int, block: FoundBlock) -> None:
        self.at: nf.Place = block.statements[0].at
        self.number = number
        self.site, self.out = f"_ab_block_{number}", f"_ab_out_{number}"
        inputs = block.form.inputs
        self.inputs: list[tuple[str, nf.Value]] = [(each.temporary or each.path[0], each.node) for each in inputs]
        self.before: list[tuple[str, nf.Value]] = [(each.temporary, each.node) for each in inputs if each.temporary]
        self.outputs = block.outputs
        self.assigned = binds(block.statements)
        self.otherwise = block.fallback()


Line = nf.Statement | BlockLine


class FunctionBlocks:
    """The blocks of one function; each is a `LaneBlock` that the rewritten code calls by name.

    Args:
        function: the function; written: names of arrays that it writes into, which a block cannot assign.
        scope: the meaning of its names.
        filename: the file that it is written in.
        sites: {name: LaneBlock or LaneScan}, filled here.
    """

    def __init__(
        self, function: nf.Closure, written: Iterable[str], scope: Scope, filename: str, sites: dict[str, Any]
    ) -> None:
        self.scope = scope
        self.filename = filename
        self.sites = sites
        self.updatable = binds(function.body)
        self.assignable = self.updatable.difference(written)
        self._reads = 0

    def gathered(self, body: Sequence[nf.Statement]) -> list[Line]:
        """The statements with each block in the place of its own."""
        out: list[Line] = []
        at = 0
        while at < len(body):
            block = longest_block(body[at:], self._form, self.assignable)
            out.append(body[at] if block is None else self._call(block))
            at += 1 if block is None else block.length
        return out

    def value(self, node: nf.Value) -> tuple[list[Line], nf.Value]:
        """Make a block of a statement's last value (a test, a returned value): the line that binds it to a name, and
        the name. If the value is too small for a block: no lines, and the value itself."""
        target = f"_ab_value_{self.number}"
        bind = nf.Bind(node.at, target, node, live_after=nf.Names((target,)))
        block = FoundBlock([bind], self._form, nf.Names((target,)))
        if not (block.is_possible and block.is_worthwhile) or block.form.count < _LEAST_IN_A_VALUE:
            return [], node
        return [self._call(block)], nf.Name(node.at, target)

    @property
    def number(self) -> int:
        """The number of the next site."""
        return len(self.sites) + 1

    def _call(self, block: FoundBlock) -> BlockLine:
        number, form = self.number, block.form
        function = body_function(form, block.returning_body(), self.filename, block.statements[0])
        passed = [place for place, each in enumerate(form.inputs) if each.is_passed]
        updates = [
            place for place, each in enumerate(form.inputs) if not each.temporary and each.path[0] in form.updates
        ]
        static = [not each.number for each in form.inputs]
        self.sites[f"_ab_block_{number}"] = LaneBlock(function, static, list(form.guards.values()), passed, updates)
        return BlockLine(number, block)

    def _form(self, _: nf.Names) -> BlockForm:
        return BlockForm(self.scope, False, self._fresh, updatable=self.updatable)

    def _fresh(self) -> str:
        self._reads += 1
        return f"_ab_input_{self.number}_{self._reads}"


class LoopScan:
    """A call at the end of a loop's body, which runs the remaining steps as one op if possible (`block_loops`).

    ```
    _ab_out_2 = _ab_scan_2(_ab_loop_1, (h, c), (x, u, h, c), (), (x, params), (states,))
    if _ab_out_2:
        (h, c) = _ab_out_2
    ```

    Attributes:
        at: where the block was written; site, out: the names of the site and of what it returns.
        states: the variables that the loop carries. values, tested, bases, lists: names whose values the call passes.
        is_while: True for a `while`, to which the site gives the states.
    """

    def __init__(
        self,
        sites: dict[str, Any],
        body: list[Line],
        test: list[Line] | None,
        states: list[str],
        targets: Iterable[str],
    ) -> None:
        self.bases: list[str] = []
        self._assigned = binds([line for line in body if not isinstance(line, BlockLine)]).union(
            *[line.assigned for line in body if isinstance(line, BlockLine)]
        )
        self._ahead = {each: Ahead(self._base(each)) for each in targets}
        while body and (found := self._bound_ahead(body[0])):
            self._ahead.update(found)
            body = body[1:]
        block = _the_block(body)
        tested = None if test is None else _the_block(test)
        outputs, assigned, last = block.outputs, block.assigned, dict(self._ahead)
        stores, appends = [], []
        for line in body[1:]:
            if store := self._stored(line):
                stores.append(store)
            elif found := self._bound_ahead(line):
                last.update(found)
            else:
                appends.append(_append(line))
        stored = {each for each, _, _ in stores}
        if len(stored) < len(stores) or (assigned | stored) & last.keys():
            raise Unsupported
        self._ahead.update({each: how.before() for each, how in last.items() if each not in self._ahead})
        followers = [each for each in states if each in last]
        self.states = [each for each in states if each not in last and each not in stored]
        if not set(self.states) <= set(outputs) or not self.states:
            raise Unsupported
        for each, value in [*appends, *[(each, value) for each, _, value in stores]]:
            if value not in outputs or each in assigned | last.keys() or any(each == key for key, _ in block.inputs):
                raise Unsupported
        self.at = block.at
        self.site, self.out = f"_ab_scan_{block.number}", block.out
        self.values = [key for key, _ in block.inputs]
        self.tested = [] if tested is None else [key for key, _ in tested.inputs]
        self.lists = [each for each, _ in appends]
        self.is_while = test is not None
        self._paths: list[Any] = []
        self._known: dict[int, Ahead] = {}
        carried = self._carried(block, False)
        sites[self.site] = LaneScan(
            sites[block.site],
            None if tested is None else sites[tested.site],
            [outputs.index(each) for each in self.states],
            carried,
            [] if tested is None else self._carried(tested, True),
            self._known,
            [last[each] for each in followers],
            [outputs.index(value) for _, value in appends],
            self._paths,
            [(outputs.index(value), self._base(each), at) for each, at, value in stores],
        )
        self.states += followers

    def _bound_ahead(self, line: Line) -> dict[str, Ahead]:
        """{name: value} for a statement that binds a name to a value which is known before the step; else empty."""
        if isinstance(line, nf.Bind) and isinstance(line.target, str) and line.value is not None:
            found = self._known_ahead(line.value)
            if found is not None and line.target not in self._ahead:
                return {line.target: found}
        return {}

    def _stored(self, line: Line) -> tuple[str, Ahead, str] | None:
        """(array, item, value) of `out[t] = value`, with an item of the loop; None for any other statement."""
        match line:
            case nf.Write(base=nf.Name(id=array), key=nf.Value() as key, value=nf.Name(id=value)):
                at = self._known_ahead(key)
                return None if at is None else (array, at, value)
        return None

    def _known_ahead(self, node: nf.Value) -> Ahead | None:
        """How a value follows from the loop's items; None for any other value."""
        match node:
            case nf.Name(id=name):
                return self._ahead.get(name)
            case nf.Call(function=nf.Operator(symbol="+" | "-" as symbol), args=[of, nf.Constant(value=int(by))]):
                found = self._known_ahead(of)
                return None if found is None else found._replace(shift=found.shift + (by if symbol == "+" else -by))
            case nf.Read(base=base, key=nf.Value() as key):
                at = self._known_ahead(key)
                return None if at is None else Ahead(*self._path(base), at)
        return None

    def _carried(self, block: BlockLine, of_test: bool) -> list[int | None]:
        """For each input of a block, the index of the state that it reads; None for a constant or an item."""
        out: list[int | None] = []
        for place, (key, node) in enumerate(block.inputs):
            out.append(None)
            ahead = self._ahead.get(key) or self._known_ahead(node)
            if ahead is not None:
                if of_test:
                    raise Unsupported
                self._known[place] = ahead
            elif not isinstance(node, nf.Name):
                base, keys = self._path(node)
                self._paths.append((of_test, place, base, keys))
            elif key in self.states:
                out[-1] = self.states.index(key)
            elif key in self._assigned:
                raise Unsupported
        return out

    def _path(self, node: nf.Value) -> tuple[int, tuple[tuple[str, Any], ...]]:
        """The index in `bases` of the name that a path starts with, and the path's keys."""
        keys: list[tuple[str, Any]] = []
        while not isinstance(node, nf.Name):
            match node:
                case nf.Read(base=base, key=str(key)):
                    keys.append(("attr", key))
                case nf.Read(base=base, key=nf.Constant(value=key)):
                    keys.append(("item", key))
                case _:
                    raise Unsupported
            node = base
        if node.id in self._assigned or node.id in self._ahead:
            raise Unsupported
        return self._base(node.id), tuple(keys[::-1])

    def _base(self, root: str) -> int:
        """The index of a name in `bases`."""
        if root not in self.bases:
            self.bases.append(root)
        return self.bases.index(root)


def scan_of(
    sites: dict[str, Any], body: list[Line], test: list[Line] | None, states: list[str], targets: Iterable[str]
) -> LoopScan | None:
    """The scan of a loop; None if it cannot run as one op.

    Args:
        sites: the sites of the function. body: the loop's body; test: the condition of a `while`.
        states: the variables that the loop carries, writes into or that are read after it.
        targets: the variables that hold the loop's items.
    """
    if not states:
        return None
    try:
        return LoopScan(sites, body, test, states, targets)
    except Unsupported:
        return None


def _the_block(body: Sequence[Line]) -> BlockLine:
    """The only block in these lines, which must come first."""
    if not body or not isinstance(body[0], BlockLine) or any(isinstance(each, BlockLine) for each in body[1:]):
        raise Unsupported
    return body[0]


def _append(line: Line) -> tuple[str, str]:
    """The names (list, value) in `states.append(h)`; any other statement raises Unsupported."""
    match line:
        case nf.Bind(
            target=None,
            value=nf.Call(function=nf.Read(base=nf.Name(id=kept), key="append"), args=[nf.Name(id=value)], keywords=[]),
        ):
            return kept, value
    raise Unsupported
