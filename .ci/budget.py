"""Tokens, functions, files, vague names and vague docstrings of each room, beside its budget in pyproject.toml.

Exits 1 where a room has more. Lines are not counted: they were packed. `--table` prints the budget as of today, with a
fiftieth more tokens and functions, for what follows the guides, such as a test of a bug or a known-bad kernel. Where a
room has more vague names than budgeted, its changed files are listed with theirs.
"""

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
VAGUE_NAMES = {
    "one", "found", "its", "known", "given", "asked", "seen", "left", "others", "told", "held", "whose", "made",
    "wanted", "such", "theirs", "mine", "own", "every", "each", "some",
}  # fmt: skip
VAGUE_BEGINNINGS = ("What ", "Whether ", "Of ", "The same", "Those ", "And ", "As ", "By ")


class Room(NamedTuple):
    """Counts of a room; of names those that stand for no thing, of functions' docstrings those that begin like that."""

    tokens: int
    functions: int
    files: int
    vague_names: int
    vague_docstrings: int

    def plus(self, other: "Room") -> "Room":
        return Room(*(one + more for one, more in zip(self, other, strict=True)))


def counted(text: str) -> Room:
    """Return the counts of a file."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE]
    names = [token.string for token in tokens if token.type == tokenize.NAME]
    functions = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    docstrings = [ast.get_docstring(function) or "" for function in functions]
    vague = sum(docstring.startswith(VAGUE_BEGINNINGS) for docstring in docstrings)
    return Room(len(tokens), len(functions), 1, sum(name in VAGUE_NAMES for name in names), vague)


def listed(*words: str) -> list[str]:
    """Return the lines that a command of git prints."""
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.splitlines()


def vague_names() -> list[str]:
    """Return the vague names of files that differ from the last commit, each with its file and line."""
    new = listed("ls-files", "--others", "--exclude-standard", "*.py")
    return [
        f"{file}:{token.start[0]}: {token.string}"
        for file in dict.fromkeys((*listed("diff", "--name-only", "--diff-filter=d", "HEAD", "--", "*.py"), *new))
        for token in tokenize.generate_tokens(io.StringIO((ROOT / file).read_text("utf-8")).readline)
        if token.type == tokenize.NAME and token.string in VAGUE_NAMES
    ]


def rooms(budgets: dict[str, list[int]]) -> dict[str, Room]:
    """Return the counts of the innermost room of every file, also of new ones that git does not ignore; what has no
    room of its own is in "."."""
    found: defaultdict[str, Room] = defaultdict(lambda: Room(0, 0, 0, 0, 0))
    for file in map(Path, listed("ls-files", "--cached", "--others", "--exclude-standard", "*.py")):
        if (ROOT / file).exists():
            room = next(parent for parent in map(Path.as_posix, file.parents) if parent in budgets)
            found[room] = found[room].plus(counted((ROOT / file).read_text("utf-8")))
    return found


def main() -> None:
    """Compare, or print the table."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["budget"]
    found = rooms(budgets)
    if "--table" in sys.argv:
        for name, room in sorted(found.items()):
            roomy = Room(round(room.tokens * 1.02), round(room.functions * 1.02) + 1, room.files + 1, *room[3:])
            print(f'"{name}" = [{", ".join(f"{count:_}" for count in roomy)}]')
        return
    over = [
        f"{name} has {count:,} {what.replace('_', ' ')}, {most:,} are budgeted"
        for name, room in found.items()
        for what, count, most in zip(Room._fields, room, budgets[name], strict=True)
        if count > most
    ]
    if over:
        over += vague_names() if any("vague names" in line for line in over) else []
        sys.exit(
            "\n".join([*over, "Take out what nobody would miss, or raise the budget in pyproject.toml and say why."])
        )
    tokens, functions, files, *_ = map(sum, zip(*found.values(), strict=True))
    print(f"{tokens:,} tokens, {functions:,} functions, {files} files")


if __name__ == "__main__":
    main()
