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
            for line, rule, message in _found(functions[name]):
                raise EmulationError(kernel, file, line, rule, message)


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")) == "jit"


def _reached(functions: dict[str, ast.FunctionDef], kernel: str) -> list[str]:
    """A kernel and the functions of its file that it names, directly or through others."""
    found = [kernel]
    for name in found:
        named = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        found.extend(sorted(named & functions.keys() - set(found)))
    return found


def _found(function: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    for node in sorted(ast.walk(function), key=lambda n: getattr(n, "lineno", 0)):
        yield from _about(node)


def _about(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    line = getattr(node, "lineno", 0)
    for types, rule, advice in _BY_NODE:
        if isinstance(node, types):
            yield line, rule, f"{type(node).__name__} is outside the subset of NKI 0.6; {advice}"
    if isinstance(node, ast.Compare):
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            yield line, "python-is", "`is` is outside the subset of NKI 0.6; compare with =="
        if len(node.ops) > 1:
            yield line, "python-chained-comparison", "a chained comparison is outside the subset of NKI 0.6; use `and`"
    if isinstance(node, ast.FunctionDef) and node.args.kwonlyargs:
        yield line, "python-keyword-only", "keyword-only arguments are outside the subset of NKI 0.6"
    if isinstance(node, ast.Dict) and any(isinstance(k, ast.Constant) and type(k.value) is not str for k in node.keys):
        yield line, "python-dict-key", "keys of a dictionary must be strings"
    if isinstance(node, ast.With) and not all("no_reorder" in ast.unparse(item) for item in node.items):
        yield line, "python-with", "only nl.no_reorder() is a context of NKI"
