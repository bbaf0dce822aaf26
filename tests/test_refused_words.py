"""Command lines that are refused: status 4, a line that says what to write instead, and nothing is run or written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.conftest import no_traceback_of_ours
from tests.kit import command, source

RUN = {
    # what is to be verified
    "": "give a file, a folder or a name, as in `conformance run acme.py`",
    "right.py --impl=nowhere/acme.py": "--impl nowhere/acme.py: no such file",
    "right.py --impl=notes.txt": "--impl notes.txt: not a Python file; give a .py file",
    "empty": "--impl empty: a folder without implementations; give a .py file, or a folder of them",
    "right.py other/right.py --in-process": "other/right.py: the name 'right' is defined here and in right.py; rename",
    "RIGHT.py": "ERROR: RIGHT.py: no such file; did you mean right.py?",
    "right.py::test_conv_forward": "an implementation stands behind ::, not a test; choose with --op",
    "right.py --all": "--all and right.py: give one of them",
    "right.py 'n1 c2 h5 w5 k2 r3 s3'": "a problem is given with --problem, in quotes: --problem ",
    "right.py --problem n1 c2": "ERROR: c2: a problem is given with --problem, in quotes: ",
    "right.py edge.plain": "a problem is given with --problem",
    "right.py conv_forward": "conv_forward is an operator: give --operator conv_forward",
    # options that are none
    "right.py --nonsense": "usage: conformance run ",
    "right.py --levle smoke": "error: unrecognized arguments: --levle smoke; did you mean --level?",
    "right.py --html=a": "or of a plugin; --report=DIR writes a page",
    "right.py --benchmark-only": "pytest --pyargs conformance.benchmarks --benchmark-only",
    "right.py -operator conv_forward": "of several letters has two dashes: --operator",
    # choices
    "right.py --level=ful": "--level ful: unknown; did you mean full? Choices: full, huge, smoke, standard",
    "right.py --method=fast": "--method fast: unknown. Choices: auto, exact, probes",
    "right.py --show=passed": "--show passed: unknown; did you mean pass? Choices: ",
    "right.py --require=cudda": "--require cudda: unknown; did you mean cuda?",
    "right.py --operator=conv_foward": "did you mean conv_forward? Choices: avg_pool_backward",
    "right.py --dtype=fp31": "did you mean fp32? Choices: bf16, fp16, fp32, fp64",
    "right.py --layout=nhcw": "nhcw: unknown; did you mean nchw or nhwc? Choices: gndhwc, gnhwc, gnwc, ncdhw",
    "right.py --distribution=fix": "--distribution fix: unknown; did you mean fixed? Choices: absorbed, behaviour, ",
    "right.py --storage=x:krop": "--storage 'x:krop': must be OPERAND:KIND",
    "right.py -m trn9": "-m trn9: unknown; did you mean trn3? Choices: cpu, cuda",
    "right.py -m 'cpu or cudda'": "-m cudda: unknown; did you mean cuda? Choices: ",
    "right.py -k '(a'": "ERROR: -k '(a': a parenthesis is not closed",
    "right.py --problem=resnet": "no problem is called resnet; did you mean resnet",
    "right.py --problem=ResNet": " more? (all: conformance list problems ResNet)",
    "right.py --problem=edge.plian": "no problem is called edge.plian; did you mean edge.plain or ",
    "right.py --problems=notes.txt": "notes.txt, line 1: 'nonsense': must be: 'DESCRIPTOR' --operator",
    # numbers
    "right.py --seed=1_0": "--seed 1_0: must be a whole number from 0 to 10^18 - 1",
    "right.py --seed=-1": "--seed -1: must be a whole number",
    "right.py --seed=": "--seed : must be a whole number",
    "right.py --timeout=0": "--timeout 0: must be a number, at least 0.1",
    "right.py --memory=x": "--memory x: must be a number",
    "right.py --workers=0": "--workers 0: must be a whole number from 1",
    "right.py --workers=1.5": "--workers 1.5: must be a whole number from 1",
    "right.py --minutes=0": "--minutes 0: must be a number above 0",
    "right.py --minutes=two": "--minutes two: must be a number above 0",
    "right.py --minutes=nan": "--minutes nan: must be a number above 0",
    "right.py --minutes=1e9": "--minutes 1e9: must be a number above 0",
    "right.py -n two": "ERROR: -n two: must be a whole number, or auto",
    "right.py -n 10000": "-n 10000: with ",
    # files
    "right.py --impl=": "--impl is empty; give a name or a path",
    "right.py --records=": "--records is empty; give a name or a path",
    "right.py --report=": "--report is empty; give a name or a path",
    "right.py --records=empty": "--records empty: cannot be written (Is a directory)",
    "right.py --records=notes.txt/r.jsonl": "--records notes.txt/r.jsonl: cannot be written (",
    "right.py --records=right.py": "is no file of records; it is not overwritten",
    "right.py --report=notes.txt/out": "--report notes.txt/out: cannot be written (",
    "right.py --records=out --junitxml=./out": "name one file",  # JUnit's XML took the place of the records
    "right.py --report=page --records=page/index.html": "name one file",
    "right.py --report=page --junitxml=page/summary.md": "name one file",
    # options that contradict each other
    "right.py --records=r.jsonl --resume --overwrite": "--resume and --overwrite: give one of them",
    "right.py --resume": "--resume: give the file, --records=FILE",
    "right.py --level=smoke --level=smoke": "--level is given twice; it takes one value",
    "right.py --seed=1 --seed=1": "--seed is given twice; it takes one value",
    "right.py --method=exact --method=exact": "--method is given twice; it takes one value",
    "right.py --records=a --records=b": "--records is given twice; it takes one value",
    "right.py --report=a --report=b": "--report is given twice; it takes one value",
}
PROBLEMS = {
    "": "field 'n' is missing",
    "n1 c2 h4 w4 k2 r3 p1": "field 's' is missing",
    "n1 c2 h4 w4 k2 r3 s3 q1": "field 'q1' is not understood; a field is a letter and a number: n",
    "n1 c2 h4 w4 k2 r3 s3 p": "field 'p' is not understood",
    "n1,c2,h4,w4,k2,r3,s3": "field 'n1,c2,h4,w4,k2,r3,s3' is not understood",
    "N1 c2 h4 w4 k2 r3 s3": "field 'N1' is not understood",
    "n1 c2 h4 w4 k2 r3 s3 n1": "field 'n' is given twice",
    "n1x2 c2 h4 w4 k2 r3 s3": "field 'n1x2' must be one whole number",
    "n1 c2 h4 w4 k2 r3 s3 u1x2x3": "field 'u1x2x3' must be a number or two joined by x, as in u2x1",
    "n1 c2 h4 w4 k2 r3 s3 p1x2x3": "field 'p1x2x3' must be written as p1, p1x2 or p0:1x2:0",
    "n1 c2 h0 w4 k2 r3 s3 p1": "h is 0; it must be at least 1",
    "n1 c2 h4 w4 k2 r3 s0": "s is 0; it must be at least 1",
    "n-1 c2 h4 w4 k2 r3 s3": "n is -1; it must not be negative",
    "n1 c2 h4 w4 k2 r3 s3 u1x0": "stride is 0; it must be at least 1",
    "n1 c2 h4 w4 k2 r3 s3 d0": "dilation is 0; it must be at least 1",
    "n1 c-2 h4 w4 k2 r3 s3": "c is -2; it must be at least 0",
    "n1 c3 h4 w4 k4 r3 s3 g2": "c is 3, which 2 groups do not divide",
    "n1 c4 h4 w4 k3 r3 s3 g2": "k is 3, which 2 groups do not divide",
    "n1 c2 h4 w9 k2 r7 s3 p1": "the window spans 7 on axis h, more than the padded image's 6; enlarge",
    "n1 c2 h9 w4 k2 r3 s3 d2": "the window spans 5 on axis w, more than the padded image's 4",
    "n1 c2 h4 w4 k2 r3 s3 b2": "field 'b2' must be b0 or b1",
    f"n1 c{'9' * 5000} h4 w4 k2 r3 s3": "field 'c9999999999999999999...' is too long: a number has at most 18 digits, "
    "a field 80 characters",
    "n1 c\u0663 h4 w4 k2 r3 s3": "field 'c\u0663' is not understood",
    "maxpool n1 c1 h9 w9 r2 s2 p999999999999999999": "a window holds nothing but padding on axis h",
}
PLAIN = "'n1 c2 h4 w4 k2 r3 s3'"
ANY = {
    "acme.py": "acme.py is no command; to verify a file or an implementation: conformance run acme.py (",
    "acme.py 'n1 c2 h5 w5'": "conformance check acme.py 'n1 c2 h5 w5' (",
    "acme.py n1 c2": "conformance check acme.py n1 c2 (",
    "torch-cpu --level smoke": "conformance run torch-cpu --level smoke (",
    "runn acme.py": "runn is no command; did you mean run?",
    "check right.py --nonsense": "unrecognized arguments: --nonsense (options: conformance check --help)",
    "check right.py": "give one, such as 'n1 c8 h9 w9 k4 r3 s3 p1', or verify on all: conformance run right.py",
    "check 'n1 c2 h5 w5' right.py": "'n1 c2 h5 w5': give the file first, and then the problem",
    "check right.py edge.plain --dtype fp8": "error: dtype fp8: unknown",
    "check right.py edge.plain --seed 1_0": "error: --seed 1_0: must be a whole number from 0 to 10^18 - 1",
    "check right.py edge.plain --impl roght": "roght: unknown; did you mean right?",
    f"check right.py {PLAIN} --check results_are_plain --storage x:crop": "--storage: a behaviour check has ",
    f"check right.py {PLAIN} --check results_are_plane": "results_are_plane: unknown; did you mean results_are_plain?",
    "check right.py::right edge.plain::right": "no problem is called edge.plain::right",
    "export right.py -o out": "error: PROBLEM: give one",
    "export right.py edge.plain -o notes.txt": "error: ",
    "list operators --nonsense": "unrecognized arguments: --nonsense (options: conformance list --help)",
    "list everything": "usage: conformance list",
    "list implementations nowhere.py": "nowhere.py: no such file",
    "list problems nowhere": "no problem with nowhere",
    "report": "usage: conformance report",
    "fuzz nowhere.py": "--impl nowhere.py: no such file",
    "fuzz numpy-direct --operator=conv": "--operator conv: unknown",
    "fuzz numpy-direct --minutes=0": "--minutes",
    "fuzz numpy-direct --seed=-1": "--seed -1: must be a whole number",
    "fuzz numpy-direct --replay=x": "'x': must be: 'DESCRIPTOR' --operator",
    "survey --folder empty ncn": "survey ncn: unknown; did you mean ncnn?",
    "survey --folder empty ncnn --seed -1": "--seed -1: must be a whole number",
    "survey --folder empty --no-run --site site": "survey.json: cannot be read",
    "survey --folder notes.txt ncnn": "--folder",
    "golden verify --jobs 0": "is not a whole number from 1 to 99",
    "golden export out --distribution fancy": "'fancy'",
    "golden export out --dtype fp8": "'fp8'",
    "golden export out --level full": "'full'",
    "golden export out --seed -1": "'-1' is not a whole number",
    "golden export out --jobs 2": "--jobs",
    "golden export out --dtype fp64 --distribution wide": "no recipe has that dtype and distribution",
    "golden export out --problem 'n1 c2'": "'w' is missing",
    "golden export out --problem edge.plian": "no problem is called edge.plian; did you mean edge.plain",
    "golden export out --problem 'n99999999999 c1 h1 w1 k1 r1 s1'": "choose a smaller --problem",
    f"golden export out --problem 'n{'9' * 5000} c1 h1 w1 k1 r1 s1'": "a number has at most 18 digits",
}
REFUSED = {
    **{f"run {words}": said for words, said in RUN.items()},
    **{shlex.join(["run", "right.py", "--problem", text]): f"--problem {text!r}: {s}" for text, s in PROBLEMS.items()},
    **ANY,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with kernels, a file that is none, and a folder without any."""
    folder = tmp_path_factory.mktemp("refused")
    for name in ("empty", "other"):
        (folder / name).mkdir()
    for name, text in {"right": source("right"), "other/right": source("right")}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "notes.txt").write_text("nonsense")
    return folder


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:60])
def test_a_line_that_is_refused_says_what_to_write(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str):
    monkeypatch.chdir(folder)
    before = {*folder.rglob("*")}
    status, text = command(*shlex.split(line))
    assert (status, REFUSED[line] in text) == (4, True), text
    assert no_traceback_of_ours(text)
    assert {*folder.rglob("*")} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_records_on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    status, text = command("run", "right.py", "--problem=edge.plain", "--in-process", "--records=/dev/full")
    assert (status, "--records /dev/full: cannot be written (No space left on device)" in text) == (4, True)
    assert no_traceback_of_ours(text)


@pytest.mark.parametrize("words", ["help", "help check", "check --help", "--version", "run --version"])
def test_a_question_is_answered(words: str):
    status, text = command(*words.split())
    assert (status, text.startswith(("usage: conformance", "kernel-conformance "))) == (0, True)
