"""Python's own tests of modules whose functions were lowered and written back: `MODULE=TEST ...`."""

import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import sys
import unittest

from autobatch.program.folding import folded
from autobatch.program.lowering import lowered
from autobatch.program.python_text import Writer


class Lowered(ast.NodeTransformer):
    count = 0

    def visit_FunctionDef(self, node):
        Lowered.count += 1
        bare = copy.deepcopy(node)
        bare.decorator_list, bare.returns = [], None
        bare.args.defaults, bare.args.kw_defaults = [], [None] * len(bare.args.kwonlyargs)
        for each in ast.walk(bare.args):
            if isinstance(each, ast.arg):
                each.annotation = None
        form = lowered(bare)
        made = Writer().definition(form if Lowered.count % 2 else folded(form))
        made.args.defaults, made.args.kw_defaults = node.args.defaults, node.args.kw_defaults
        made.decorator_list = node.decorator_list
        return made


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        tree = Lowered().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path, target=None):
        if name not in self.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec


def main(modules):
    for name in modules:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Finder(modules))
    suite = unittest.TestSuite()
    for name, test in modules.items():
        importlib.import_module(name)
        suite.addTests(unittest.defaultTestLoader.loadTestsFromName(f"test.{test}"))
    done = unittest.TextTestRunner(verbosity=0).run(suite)
    print("functions", Lowered.count)
    return 0 if done.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(dict(each.split("=") for each in sys.argv[1:])))
