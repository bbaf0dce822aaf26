"""A file's source, read before its import: whether it may define torch modules, and which `Model` is the reference.

Published problems and solutions both call their class `Model`. Where one file has both, Python forgets the first one,
and the suite would compare the kernel with itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REFERENCE = "ReferenceModel"
"""Name that the reference is given in a file that calls its kernel `Model` too."""


def parsed(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file; None for a folder, and for a file that Python cannot read: its import says
    why."""
    try:
        return ast.parse(path.read_bytes(), str(path)) if path.is_file() else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def imports_torch(tree: ast.Module) -> bool:
    """Return whether a file imports torch, anywhere in it."""
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").partition(".")[0])
    return "torch" in imported


def makes_implementation(tree: ast.Module) -> bool:
    """Return whether a file calls `Implementation`, anywhere in it."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any("Implementation" in (getattr(called, "id", ""), getattr(called, "attr", "")) for called in calls)


def with_reference(tree: ast.Module) -> ast.Module | None:
    """Return the tree in which reference and kernel have two names, REFERENCE and `Model`; None if the file needs none.

    A line such as `Model = nn.Conv2d` is the reference wherever it stands, or else the first of several definitions.
    """
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    named = [node for node in tree.body if "Model" in _bound(node)]
    if classes > {"Model"}:  # files of two kernels, one behind the other, repeat their problem
        texts = [ast.dump(node) for node in named]
        named = [node for place, node in enumerate(named) if texts[place] not in texts[:place]]
    declared = [
        node
        for node in named
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and classes.isdisjoint(_names(node.value))
    ]
    undeclared = [node for node in named if node not in declared]
    if not undeclared or len(undeclared) + len(declared) < 2:
        return None
    reference = (declared or undeclared)[-1 if declared else 0]
    body: list[ast.stmt] = []
    for node in tree.body:
        if node is not reference:
            body.append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node is named[-1] and node.value is not None:
            body.append(_assigned(REFERENCE, node.value, node))
        else:
            body.append(_Renamed().visit(node) if isinstance(node, ast.ClassDef) else node)
            body.append(_assigned(REFERENCE, ast.Name("Model", ast.Load()), node))
    return ast.fix_missing_locations(ast.Module(body, tree.type_ignores))


class _Renamed(ast.NodeTransformer):
    """Renames `Model` in the body of the reference, where `super(Model, self)` would find the kernel."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(REFERENCE, node.ctx), node) if node.id == "Model" else node


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a class or an assignment defines; none where it defines `Model` by `Model`."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and "Model" not in _names(node.value):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def _names(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _assigned(name: str, value: ast.expr, like: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), like)
