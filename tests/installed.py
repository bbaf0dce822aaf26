"""What a vendor does with the wheel, in an empty folder.

A script, not a test of the suite: `tox -e package` runs it in an environment that has the wheel and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
ACME = README.partition("```python\n")[2].partition("```")[0]
ONE = "--problem 'n2 c8 h9 w9 k16 r1 s1' --operator conv_forward --dtype fp32 --layout nchw --distribution fixed"
ISOLATED = (
    "import os, subprocess; from conformance.worker.isolation import isolate, isolated; "
    "can = subprocess.run(['unshare', '-m', 'true']).returncode == 0; isolate(os.getppid()); "
    "print('isolated' if isolated() or not can else 'open')"
)
"""Of a wheel the goldens lie in the folder that is hidden first: no process was isolated."""
UNUSABLE = "acme.py --level smoke --level full"
RUNS = {
    f"conformance run acme.py {ONE}": (0, "1 pass"),
    f"python -m conformance run {ONE} --impl=acme.py -n 2 --junitxml=junit.xml": (0, "1 pass"),
    f"pytest --pyargs conformance.suites --impl=acme.py {ONE}": (0, "1 pass"),
    f"pytest project/tests --rootdir=project -c project/pytest.ini {ONE}": (0, "1 pass"),
    f"conformance run 'wröng kernel.py' {ONE}": (1, "1 fail"),
    "conformance run numpy-direct --level smoke --operator max_pool_forward": (0, "pass"),
    f"conformance run {UNUSABLE}": (4, "--level is given twice"),
    f'python -c "{ISOLATED}"': (0, "isolated"),
    "conformance run nowhere.py": (4, "nowhere.py: no such file"),
    "conformance list implementations": (0, "numpy-direct"),
    "conformance golden export golden --operator nothing": (4, "invalid choice"),
    "pytest unrelated": (0, "1 passed"),
}
"""Command -> exit status, and what it prints."""


def main() -> None:
    """Run all of them; raises AssertionError with the output of the first that ends otherwise."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "acme.py", ACME)
        write(folder / "wröng kernel.py", ACME.replace("    return", "    y[:, :, -1] = 0\n    return"))
        write(folder / "project/acme.py", ACME)
        write(folder / "project/pytest.ini", "[pytest]\nimpls = acme.py\n")
        write(folder / "project/tests/test_conformance.py", "from conformance.suites import *\n")
        write(folder / "unrelated/test_it.py", "import sys\ndef test_it(): assert 'numpy' not in sys.modules\n")
        for command, (status, text) in RUNS.items():
            output = run(command, folder, status, text)
            if line := re.search(r"^reproduce: (.*)$", output, re.MULTILINE):
                run(line[1], folder, 1, "fail: conv_forward of ")


def run(command: str, folder: Path, status: int, text: str) -> str:
    """Its output, once its status and its text are as expected."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        words, cwd=folder, env=alone | {"COLUMNS": "300"}, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert (done.returncode, text in output, "Traceback" in output) == (status, True, False), f"{command}\n{output}"
    print(f"exit {status}: {command}")
    return output


def write(file: Path, text: str) -> None:
    """With the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
