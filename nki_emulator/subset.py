"""Python that the tracer of NKI 0.7 takes and the parser of 0.6 does not: refused in kernels when they are loaded.

The subset is that of the "NKI Language Guide", Neuron SDK 2.32: what it does not name is refused here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .errors import EmulationError

_BY_NODE: tuple[tuple[tuple[type[ast.AST], ...], str, str], ...] = (
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "python-comprehension", "write a for loop"),
    ((ast.Lambda,), "python-lambda", "define a function"),
    ((ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef), "python-generator", "a kernel runs once, through"),
    ((ast.Try, ast.Raise), "python-exception", "check with if or assert"),
    ((ast.Global, ast.Nonlocal), "python-scope", "pass the value and return it"),
    ((ast.Import, ast.ImportFrom), "python-import", "import at the top of the file"),
    ((ast.NamedExpr,), "python-walrus", "assign in a statement of its own"),
    ((ast.Match,), "python-match", "write if and elif"),
)


def check(tree: ast.Module, file: str) -> None:
    """Raise `EmulationError` at the first construct outside the subset in a jitted function, or one that it calls."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    kernels = [name for name, node in functions.items() if any(_is_jit(d) for d in node.decorator_list)]
    for kernel in kernels:
        for name in _reached(functions, kernel):
            for node in sorted(ast.walk(functions[name]), key=lambda node: getattr(node, "lineno", 0)):
                for rule, message in _broken(node):
                    raise EmulationError(kernel, file, getattr(node, "lineno", 0), rule, message)


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target).rpartition(".")[2] == "jit"


def _reached(functions: dict[str, ast.FunctionDef], kernel: str) -> list[str]:
    """A kernel and the functions of its file that it names, directly or through others."""
    found = [kernel]
    for name in found:
        named = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        found.extend(sorted(named & functions.keys() - set(found)))
    return found


def _broken(node: ast.AST) -> Iterator[tuple[str, str]]:
    for types, rule, advice in _BY_NODE:
        if isinstance(node, types):
            yield rule, f"{type(node).__name__} is outside the subset of NKI 0.6; {advice}"
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
