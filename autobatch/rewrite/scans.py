"""Loops whose body is one run, and appends of what it makes: lines that let the steps that are left run as one op."""

import ast
from typing import Any

from autobatch.lockstep.scans import ScanSite
from autobatch.syntax.quote import expression, name, statements

__all__ = ["scan_lines"]


class _NotAScan(Exception):  # noqa: N818  (a signal inside of this module)
    """Something in the loop that is no part of one block."""


def scan_lines(
    runs: Any, loop: str, body: list[ast.stmt], test: list[ast.stmt] | None, states: list[str], targets: set[str]
) -> list[ast.stmt]:
    """What the end of a loop's body asks, where its steps may run as one op (`lockstep.scans`); else nothing.

    ```
    _ab_out_2 = _ab_scan_2(_ab_loop_1, (h, c), (x, u, h, c), (), (params,), (states,))
    if _ab_out_2:
        (h, c) = _ab_out_2
    ```

    Args:
        body: the statements of the body, each run a call of its site; test: those of the condition of a `while`.
        states: the variables that the loop carries or that are read behind it.
        targets: those that hold the items.
    """
    if runs is None or not states:
        return []
    try:
        return _Scan(runs, body, test, states, targets).lines(loop)
    except _NotAScan:
        return []


class _Scan:
    """The block of a loop, and how its inputs follow from one step to the next."""

    def __init__(
        self, runs: Any, body: list[ast.stmt], test: list[ast.stmt] | None, states: list[str], targets: set[str]
    ) -> None:
        self.runs = runs
        self.states = states
        self.targets = targets
        self.run = _the_run(body)
        self.test = None if test is None else _the_run(test)
        self.at = self.run.taken[0]
        self.bases: list[str] = []
        self.paths: list[Any] = []
        outputs, assigned = self.run.outputs, self.run.assigned
        if not set(states) <= set(outputs) or targets & assigned:
            raise _NotAScan
        self.appends = [_append(line) for line in body if not hasattr(line, "is_run")]
        for each, value in self.appends:
            if value not in outputs or each in assigned | targets or each in self.run.inputs:
                raise _NotAScan

    def lines(self, loop: str) -> list[ast.stmt]:
        """The lines, and their site among the sites of the function."""
        run, test, outputs = self.run, self.test, self.run.outputs
        tested: list[Any] = [] if test is None else list(test.inputs)
        site = f"_ab_scan_{run.number}"
        carried = self._carried(run, False)
        self.runs.sites[site] = ScanSite(
            self.runs.sites[run.site],
            None if test is None else self.runs.sites[test.site],
            [outputs.index(each) for each in self.states],
            carried,
            [] if test is None else self._carried(test, True),
            [place for place, key in enumerate(run.inputs) if key in self.targets],
            [outputs.index(value) for _, value in self.appends],
            self.paths,
        )
        call = expression(
            "SITE(LOOP, STATES, VALUES, TESTED, BASES, LISTS)", self.at, SITE=site, LOOP=loop,
            STATES=self._tuple(self.states), VALUES=self._tuple(list(run.inputs)), TESTED=self._tuple(tested),
            BASES=self._tuple(self.bases), LISTS=self._tuple([each for each, _ in self.appends]),
        )  # fmt: skip
        if test is not None:
            return [ast.copy_location(ast.Expr(call), self.at)]
        out = f"_ab_out_{run.number}"
        targets = ast.Tuple([name(each, self.at, ast.Store()) for each in self.states], ast.Store())
        bind = ast.Assign([ast.copy_location(targets, self.at)], name(out, self.at))
        return statements(
            "OUT = CALL\nif OUT:\n    BIND", self.at, OUT=out, CALL=call, BIND=[ast.copy_location(bind, self.at)]
        )

    def _tuple(self, names: list[str]) -> ast.expr:
        return ast.copy_location(ast.Tuple([name(each, self.at) for each in names], ast.Load()), self.at)

    def _carried(self, run: Any, of_test: bool) -> list[int | None]:
        """For each input of a run the state that it is, or None for one that stays or is an item."""
        out: list[int | None] = []
        for place, (key, node) in enumerate(run.inputs.items()):
            out.append(None)
            if not isinstance(node, ast.Name):
                base, keys = self._path(node)
                self.paths.append((of_test, place, base, keys))
            elif key in self.states:
                out[-1] = self.states.index(key)
            elif key in self.run.assigned or (of_test and key in self.targets):
                raise _NotAScan
        return out

    def _path(self, node: ast.expr) -> tuple[int, tuple[tuple[str, Any], ...]]:
        """What a path starts from, by its number, and its keys."""
        keys: list[tuple[str, Any]] = []
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                keys.append(("attr", node.attr))
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                keys.append(("item", node.slice.value))
            else:
                raise _NotAScan
            node = node.value
        if node.id in self.run.assigned | self.targets:
            raise _NotAScan
        if node.id not in self.bases:
            self.bases.append(node.id)
        return self.bases.index(node.id), tuple(keys[::-1])


def _the_run(body: list[ast.stmt]) -> Any:
    """The one run at the start of these statements."""
    found = [line.is_run for line in body if hasattr(line, "is_run")]
    if not found or any(each is not found[0] for each in found) or not hasattr(body[len(found) - 1], "is_run"):
        raise _NotAScan
    return found[0]


def _append(line: ast.stmt) -> tuple[str, str]:
    """The names in `states.append(h)`."""
    call = line.value if isinstance(line, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        raise _NotAScan
    if len(call.args) != 1 or call.keywords or not isinstance(call.func.value, ast.Name):
        raise _NotAScan
    (value,) = call.args
    if not isinstance(value, ast.Name):
        raise _NotAScan
    return call.func.value.id, value.id
