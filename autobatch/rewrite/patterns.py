"""The pass for `match`: a chain of `if` whose tests take the subject apart."""

import ast
from typing import Any

from autobatch.syntax.quote import expression, name, statements
from autobatch.syntax.scopes import with_methods

__all__ = ["Patterns"]


class Patterns(ast.NodeTransformer):
    """Reads `match`; leaves `if`, with tests in the order in which Python looks at the subject's parts.

    ```
    _ab_subject_1 = SUBJECT                                 # match SUBJECT:
    if _ab_subject_1 == 0:                                  #     case 0:
        BODY                                                #         BODY
    elif (_ab_is_sequence(_ab_subject_1)                    #     case [x, *rest] if GUARD:
            and len(_ab_subject_1) >= 1
            and _ab_bound((x := _ab_subject_1[0]), (rest := list(_ab_subject_1[1:])))
            and GUARD):
        BODY                                                #         BODY
    ```
    A part that is looked at more than once has a name of its own (`_ab_part_2 := ...`); the user's names are bound when
    the whole pattern holds. So lanes that match different cases part and meet as those of any `if`. Runs first.
    """

    removes = "match"

    def __init__(self, function: ast.FunctionDef) -> None:
        self.count = 0

    @staticmethod
    def remains(node: ast.AST) -> bool:
        return isinstance(node, ast.Match)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return with_methods(self, node)

    def visit_Match(self, node: ast.Match) -> Any:
        self.generic_visit(node)
        subject = self._new("subject")
        orelse: list[ast.stmt] = []
        for case in reversed(node.cases):
            bound: list[tuple[str, ast.expr]] = []
            tests = self._tests(case.pattern, subject, bound)
            if bound:
                at = case.pattern
                call = expression("_ab_bound()", at)
                call.args = [_bind(each, value, at) for each, value in bound]
                tests.append(call)
            if case.guard is not None:
                tests.append(case.guard)
            if tests:
                orelse = [ast.copy_location(ast.If(_all(tests, case.pattern), case.body, orelse), case.pattern)]
            else:
                orelse = case.body
        return [*statements("SUBJECT = VALUE", node.subject, SUBJECT=subject, VALUE=node.subject), *orelse]

    def _new(self, kind: str) -> str:
        self.count += 1
        return f"_ab_{kind}_{self.count}"

    def _tests(self, pattern: ast.pattern, subject: str, bound: list[tuple[str, ast.expr]]) -> list[ast.expr]:
        """What must hold of a named value, in order; `bound` gets the names that the pattern binds."""
        value = name(subject, pattern)
        match pattern:
            case ast.MatchValue(value=expected):
                return [ast.copy_location(ast.Compare(value, [ast.Eq()], [expected]), pattern)]
            case ast.MatchSingleton(value=expected):
                constant = ast.copy_location(ast.Constant(expected), pattern)
                return [ast.copy_location(ast.Compare(value, [ast.Is()], [constant]), pattern)]
            case ast.MatchAs(pattern=inner, name=identifier):
                tests = self._tests(inner, subject, bound) if inner is not None else []
                if identifier is not None:
                    bound.append((identifier, value))
                return tests
            case ast.MatchOr(patterns=patterns):
                return self._either(patterns, subject, bound, pattern)
            case ast.MatchSequence(patterns=patterns):
                return self._sequence(patterns, subject, bound, pattern)
            case ast.MatchMapping(keys=keys, patterns=patterns, rest=rest):
                tests = [expression("_ab_is_mapping(X)", pattern, X=value)]
                for key, inner in zip(keys, patterns, strict=True):
                    tests.append(ast.copy_location(ast.Compare(key, [ast.In()], [value]), pattern))
                    part = ast.copy_location(ast.Subscript(value, key, ast.Load()), pattern)
                    tests += self._part(inner, part, bound)
                if rest is not None:
                    taken = ast.copy_location(ast.Tuple(list(keys), ast.Load()), pattern)
                    bound.append((rest, expression("_ab_rest(X, KEYS)", pattern, X=value, KEYS=taken)))
                return tests
            case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=named):
                tests = [expression("_ab_is_instance(X, CLS)", pattern, X=value, CLS=cls)]
                for place, inner in enumerate(patterns):
                    at = ast.copy_location(ast.Constant(place), pattern)
                    parts = {"X": value, "CLS": cls, "I": at}
                    tests.append(expression("_ab_has_place(X, CLS, I)", pattern, **parts))
                    tests += self._part(inner, expression("_ab_place(X, CLS, I)", pattern, **parts), bound)
                for field, inner in zip(names, named, strict=True):
                    constant = ast.copy_location(ast.Constant(field), pattern)
                    tests.append(expression("_ab_has(X, KEY)", pattern, X=value, KEY=constant))
                    attribute = ast.copy_location(ast.Attribute(value, field, ast.Load()), pattern)
                    tests += self._part(inner, attribute, bound)
                return tests
        raise SyntaxError(f"an unknown pattern (line {pattern.lineno})")

    def _part(self, pattern: ast.pattern, value: ast.expr, bound: list[tuple[str, ast.expr]]) -> list[ast.expr]:
        """What must hold of a part."""
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name is not None:
                bound.append((pattern.name, value))
            return []
        if isinstance(pattern, ast.MatchValue):
            return [ast.copy_location(ast.Compare(value, [ast.Eq()], [pattern.value]), pattern)]
        part = self._new("part")
        call = expression("_ab_bound()", pattern)
        call.args = [_bind(part, value, pattern)]
        return [call, *self._tests(pattern, part, bound)]

    def _either(
        self, patterns: list[ast.pattern], subject: str, bound: list[tuple[str, ast.expr]], at: ast.AST
    ) -> list[ast.expr]:
        """`A | B`: the names that each of them binds are bound where it holds."""
        ways = []
        names: dict[str, str] = {}
        for pattern in patterns:
            inner: list[tuple[str, ast.expr]] = []
            tests = self._tests(pattern, subject, inner)
            if inner:
                call = expression("_ab_bound()", pattern)
                for identifier, _ in inner:
                    names.setdefault(identifier, self._new("part"))
                call.args = [_bind(names[identifier], value, pattern) for identifier, value in inner]
                tests.append(call)
            if not tests:
                tests = [ast.copy_location(ast.Constant(True), pattern)]
            ways.append(_all(tests, pattern))
        bound += [(identifier, name(part, at)) for identifier, part in names.items()]
        return [ast.copy_location(ast.BoolOp(ast.Or(), ways), at)]

    def _sequence(
        self, patterns: list[ast.pattern], subject: str, bound: list[tuple[str, ast.expr]], at: ast.AST
    ) -> list[ast.expr]:
        value = name(subject, at)
        stars = [place for place, each in enumerate(patterns) if isinstance(each, ast.MatchStar)]
        least = ast.copy_location(ast.Constant(len(patterns) - len(stars)), at)
        tests = [expression("_ab_is_sequence(X)", at, X=value)]
        if not stars or least.value:
            relation = ast.GtE() if stars else ast.Eq()
            length = ast.copy_location(ast.Call(name("_ab_len", at), [value], []), at)
            tests.append(ast.copy_location(ast.Compare(length, [relation], [least]), at))
        for place, each in enumerate(patterns):
            if isinstance(each, ast.MatchStar):
                if each.name is not None:
                    after = len(patterns) - 1 - place
                    stop = f"-{after}" if after else "None"
                    bound.append((each.name, expression(f"_ab_middle(X, {place}, {stop})", at, X=value)))
                continue
            index = place if not stars or place < stars[0] else place - len(patterns)
            part = expression(f"X[{index}]", each, X=value)
            tests += self._part(each, part, bound)
        return tests


def _bind(identifier: str, value: ast.expr, at: ast.AST) -> ast.NamedExpr:
    target = ast.copy_location(ast.Name(identifier, ast.Store()), at)
    return ast.copy_location(ast.NamedExpr(target, value), at)


def _all(tests: list[ast.expr], at: ast.AST) -> ast.expr:
    return tests[0] if len(tests) == 1 else ast.copy_location(ast.BoolOp(ast.And(), tests), at)
