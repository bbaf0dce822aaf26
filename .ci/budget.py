"""Lines of Python in each room, beside the budget that pyproject.toml gives it; exits 1 where one has more."""

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
budgets = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["budget"]
tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout
files = [file for file in map(Path, tracked.splitlines()) if (ROOT / file).exists()]
lines = Counter[str]()
for file in files:
    parents = (parent.as_posix() for parent in file.parents)
    room = next(parent for parent in parents if parent in budgets)  # the innermost; what has none of its own is in "."
    lines[room] += (ROOT / file).read_text("utf-8").count("\n")
over = [
    f"{room} has {lines[room]:,} lines, {budgets[room]:,} are budgeted"
    for room in budgets
    if lines[room] > budgets[room]
]
if over:
    sys.exit("\n".join([*over, "Take out what nobody would miss, or raise the budget in pyproject.toml and say why."]))
print(f"{lines.total():,} lines in {len(files)} files, of {sum(budgets.values()):,} that are budgeted")
