"""Python that the tracer of NKI 0.7 takes and the parser of 0.6 does not: refused in kernels when they are loaded.

The subset is that of the "NKI Language Guide", Neuron SDK 2.32: what it does not name is refused here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .errors import EmulationError
from .pages import page_of

DICTIONARY = "_nki_dictionary"
"""What kernels make dictionaries with: `objects.Dictionary`."""
DYNAMIC_LOOPS: set[tuple[str, int]] = set()
"""File and line of each `while` whose condition is a name alone, which may be a register."""

_BY_NODE: tuple[tuple[tuple[type[ast.AST], ...], str, str], ...] = (
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "python-comprehension", "write a for loop"),
    ((ast.Lambda,), "python-lambda", "define a function"),
    ((ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef), "python-generator", "a kernel runs once, through"),
    ((ast.Try, ast.Raise), "python-exception", "check with if or assert"),
    ((ast.Global, ast.Nonlocal), "python-scope", "pass the value and return it"),
    ((ast.Import, ast.ImportFrom), "python-import", "import at the top of the file"),
    ((ast.NamedExpr,), "python-walrus", "assign in a statement of its own"),
    ((ast.Match,), "python-match", "write if and elif"),
    ((ast.Set,), "python-value", "containers are tuples, lists and dictionaries"),
)


def check(tree: ast.Module, file: str) -> None:
    """Raise `EmulationError` at the first construct outside the subset in a jitted function, or one that it calls.
    Their dictionaries become those of `DICTIONARY`, because only a call shows what becomes a key."""
    libraries = frozenset(_numpy_names(tree))
    DYNAMIC_LOOPS.update(
        (file, node.test.lineno) for node in ast.walk(tree) if isinstance(node, ast.While) and _is_name(node.test)
    )
    _check_classes(tree, file)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    plain = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and not _is_nki(node)}
    kernels = [name for name, node in functions.items() if any(_is_jit(d) for d in node.decorator_list)]
    for kernel in kernels:
        for name in _reached(functions, kernel):
            for node in sorted(ast.walk(functions[name]), key=lambda node: getattr(node, "lineno", 0)):
                if isinstance(node, ast.Name) and node.id in plain:
                    message = f"class {node.id} does not inherit from NKIObject; a class of a kernel does"
                    raise EmulationError(kernel, file, node.lineno, "python-class", message, page_of("python-class"))
                for rule, message in _broken(node, libraries):
                    raise EmulationError(kernel, file, getattr(node, "lineno", 0), rule, message, page_of(rule))
            _Dictionaries().visit(functions[name])


class _Dictionaries(ast.NodeTransformer):
    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Call(_name(DICTIONARY, node), [node], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "dict":
            node.func = _name(DICTIONARY, node.func)
        return node


def _name(name: str, place: ast.expr) -> ast.Name:
    return ast.copy_location(ast.Name(name, ast.Load()), place)


def _is_value(value: object) -> bool:
    """One of the constants that the guide names; `...` stands in indices."""
    if type(value) is int:
        return -(2**31) <= value < 2**32
    return value is None or value is Ellipsis or isinstance(value, bool | float | str)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _numpy_names(tree: ast.Module) -> Iterator[str]:
    """What the file calls NumPy and its parts."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.asname or "numpy" for alias in node.names if alias.name.partition(".")[0] == "numpy")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numpy":
            yield from (alias.asname or alias.name for alias in node.names)


def _is_nki(node: ast.ClassDef) -> bool:
    """A class that NKI knows, or an enumeration."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return bool(bases & {"NKIObject", "Enum", "IntEnum"})


def _check_classes(tree: ast.Module, file: str) -> None:
    """A class of NKI has NKIObject as its only base."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if "NKIObject" in bases and len(bases) > 1:
                message = f"class {node.name} inherits from NKIObject and others; a class of a kernel from it alone"
                raise EmulationError(node.name, file, node.lineno, "python-class", message, page_of("python-class"))


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target).rpartition(".")[2] == "jit"


def _reached(functions: dict[str, ast.FunctionDef], kernel: str) -> list[str]:
    """A kernel and the functions of its file that it names, directly or through others."""
    reached = [kernel]
    for name in reached:
        named = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        reached.extend(sorted(named & functions.keys() - set(reached)))
    return reached


def _broken(node: ast.AST, libraries: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Call) and ast.unparse(node.func).partition(".")[0] in libraries:
        yield "python-library", f"{ast.unparse(node.func)}: NumPy does not run in a kernel; call it before and pass it"
    for types, rule, advice in _BY_NODE:
        if isinstance(node, types):
            yield rule, f"{type(node).__name__} is outside the subset of NKI 0.6; {advice}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
        yield "python-value", "a set is outside the subset of NKI 0.6; containers are tuples, lists and dictionaries"
    if isinstance(node, ast.Constant) and not _is_value(node.value):
        yield "python-value", f"{node.value!r} is no value of NKI: None, bools, 32-bit integers and floats, strings"
    if isinstance(node, ast.Compare):
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            yield "python-is", "`is` is outside the subset of NKI 0.6; compare with =="
        if len(node.ops) > 1:
            yield "python-chained-comparison", "a chained comparison is outside the subset of NKI 0.6; use `and`"
    if isinstance(node, ast.FunctionDef) and node.args.kwonlyargs:
        yield "python-keyword-only", "keyword-only arguments are outside the subset of NKI 0.6"
    if isinstance(node, ast.Dict) and any(isinstance(k, ast.Constant) and type(k.value) is not str for k in node.keys):
        yield "python-dict-key", "keys of a dictionary must be strings"
    if isinstance(node, ast.With) and not all("no_reorder" in ast.unparse(item) for item in node.items):
        yield "python-with", "only nl.no_reorder() is a context of NKI"
