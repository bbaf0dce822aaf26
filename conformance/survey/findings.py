"""`conformance survey --findings`: defects of other people's libraries, each a page with a script that needs no suite.

A page is Markdown: a title, a table of facts, a description of the defect, and one block of Python of at most 15 lines,
which ends with an assertion that holds where the library is right.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.exit_codes import ExitCode
from conformance.implementations.devices import missing
from conformance.resources import FINDINGS
from conformance.survey.environments import Wanted, engines, python_of
from conformance.survey.survey_file import SurveyError

FACTS = ("engine", "seen in", "shows", "upstream")
"""Rows of a page's table: the engine as a survey knows it; packages with versions, and the processor if that matters;
how the script ends; where the defect is tracked, or that no report was found."""
MAX_LINES = 15
PATIENCE = 120.0
"""Seconds that a script may take."""
_FACT = re.compile(r"^\| ([a-z ]+) \| (.+) \|$", re.MULTILINE)
_RAISED = re.compile(r"^(?:\w+\.)*[A-Z]\w+(?:: .*)?$", re.MULTILINE)
_SCRIPT = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """A page about one defect."""

    name: str
    title: str
    facts: dict[str, str]
    script: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended: "reproduces", "fixed", "not installed", "no device", or "differs", with its last message."""

    word: str
    said: str = ""


def reproduce(names: Collection[str], folder: Path) -> ExitCode:
    """Run the scripts of findings, or of engines, by name (all if none is given), in the environments of a survey's
    folder where it has them, else by this interpreter. Raises SurveyError."""
    findings = read(FINDINGS)
    if unknown := {*names} - {name for finding in findings for name in (finding.name, finding.facts["engine"])}:
        raise SurveyError(
            f"{sorted(unknown)[0]}: no such finding. Choices: {', '.join(finding.name for finding in findings)}"
        )
    counts = Counter[str]()
    for finding in findings:
        if names and not {finding.name, finding.facts["engine"]} & {*names}:
            continue
        python = python_of(folder / "environments", Wanted(finding.facts["engine"]))
        outcome = reproduced(finding, python if python.exists() else Path(sys.executable))
        counts[outcome.word] += 1
        print(f"{outcome.word:13}  {finding.name}: {outcome.said or finding.title}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    if counts["fixed"] or counts["differs"]:
        return ExitCode.BAD
    return ExitCode.GOOD if counts["reproduces"] else ExitCode.NOTHING


def read(folder: Path) -> list[Finding]:
    """Return all pages of a folder, by name. Raises SurveyError for one that cannot be run."""
    return [parsed(file.stem, file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.md"))]


def parsed(name: str, text: str) -> Finding:
    """Parse a page. Raises SurveyError, which names what the page lacks."""
    title, scripts, facts = text.partition("\n")[0].removeprefix("# "), _SCRIPT.findall(text), dict(_FACT.findall(text))

    def wrong() -> Iterator[str]:
        yield from (f"has no row {fact!r} in its table" for fact in FACTS if fact not in facts)
        if facts.get("engine") not in engines():
            yield f"engine {facts.get('engine')!r} is none of {', '.join(engines())}"
        if not re.fullmatch(r"[A-Z]\w+( or [A-Z]\w+)*", facts.get("shows", "")):
            yield "shows must name an exception, such as AssertionError, or a signal, such as SIGSEGV"
        if len(scripts) != 1:
            yield f"has {len(scripts)} blocks of Python; one is run"
        elif (count := len(re.findall(r"^.*\S", scripts[0], re.MULTILINE))) > MAX_LINES:
            yield f"its script has {count} lines; {MAX_LINES} are allowed"

    for problem in wrong():
        raise SurveyError(f"{name}.md: {problem}")
    return Finding(name, title, facts, scripts[0])


def reproduced(finding: Finding, python: Path) -> Outcome:
    """Run the script of a finding by itself; one that was seen with CUDA only where there is a device."""
    if "CUDA" in finding.facts["seen in"] and (absence := missing("cuda")):
        return Outcome("no device", absence)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"{finding.name}.py")  # a file, because compilers of Python read the source
        script.write_text(finding.script, encoding="utf-8")
        try:
            done = subprocess.run(
                [python.absolute(), "-P", script], cwd=folder, timeout=PATIENCE, check=False,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome("differs", f"did not end within {PATIENCE:.0f} s")
    # a message may have several lines; the first of them begins with the exception's name
    *_, last = ["", *_RAISED.findall(done.stderr)]
    expected = finding.facts["shows"]
    if not done.returncode:
        return Outcome("fixed", "the script ends well: remove the page, or say in which version it was mended")
    ended_by = signal.Signals(-done.returncode).name if done.returncode < 0 else ""
    shown = ended_by or last.partition(":")[0].rpartition(".")[2]
    if shown == "ModuleNotFoundError":
        return Outcome("not installed", f"{last.partition(': ')[2]} ({finding.facts['engine']})")
    if shown not in expected.split(" or "):
        return Outcome("differs", f"ended with {shown or done.returncode}, and {expected} was expected: {last}")
    return Outcome("reproduces")
