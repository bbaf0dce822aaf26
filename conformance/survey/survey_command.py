"""`conformance survey`: every engine in an environment of its own, and a site of the results."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import conformance
from conformance.execution.selection import SelectionError, require_known, seed_number
from conformance.exit_codes import ExitCode
from conformance.problems import LEVELS
from conformance.results import units
from conformance.results.reading import RecordError, read
from conformance.results.schema import STATUSES, VERIFIED, Footer, Header
from conformance.survey import findings, survey_file
from conformance.survey.environments import Environments, Wanted, engines, python_of, requirements
from conformance.survey.survey_file import Survey, Surveyed, SurveyError


def declare(parser: argparse.ArgumentParser) -> None:
    """Verify other people's engines, each in an environment of its own, and make a site of the results."""
    parser.set_defaults(run=_run)
    parser.epilog = (
        f"Engines: {', '.join(engines())}. Environments are kept in the folder, and made anew where an extra changes."
    )
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="these only (default: all)")
    parser.add_argument("--level", choices=LEVELS, default="standard", help="how much to run")
    parser.add_argument("--seed", default="0", metavar="N", help="of the data")
    parser.add_argument("-n", default="1", metavar="N", dest="processes", help="processes for each run, as of pytest")
    units.declare(parser, "engines; units may have a folder in common")
    units.declare_cluster(parser)
    parser.add_argument("--minutes", metavar="N", help="longest run of an engine: a fair sample of what it takes")
    parser.add_argument("--folder", type=Path, default=Path(".survey"), help="where environments and records are kept")
    parser.add_argument(
        "--suite", type=Path, metavar="WHEEL", help="what to install as the suite (default: this checkout)"
    )
    parser.add_argument("--site", type=Path, metavar="DIR", help="write a site of the folder's results there")
    parser.add_argument("--no-run", action="store_true", help="only write the site")
    parser.add_argument(
        "--findings", action="store_true",
        help="run only the scripts of docs/findings, of these engines or findings, and say which reproduce",
    )  # fmt: skip


def _run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.findings:
            return findings.reproduce(arguments.engines, arguments.folder)
        status = ExitCode.GOOD if arguments.no_run else _surveyed(arguments)
        if arguments.site is not None:
            from conformance.survey import site

            page, errors = site.build(arguments.folder, arguments.site)
            environments = survey_file.read(arguments.folder).environments
            samples = {
                Path(environment.records).name for environment in environments if environment.reason.startswith(SAMPLE)
            }
            errors = tuple(line for line in errors if line.partition(":")[0] not in samples)  # stopped on purpose
            print("\n".join([*errors, f"site: {page}"]))
            status = max(status, ExitCode.BAD if errors else ExitCode.GOOD)
    except SurveyError as error:
        print(f"survey: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE
    return status


NONE = (None, None)
WORKERS = 16
"""Number of an engine's variants that have a process at once."""
SAMPLE = "a sample:"
"""How the reason of a run begins that was stopped after the minutes asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options with which every engine is run."""

    folder: Path
    level: str
    seed: int
    processes: str
    minutes: str | None


def _surveyed(arguments: argparse.Namespace) -> ExitCode:
    """Run the engines asked for, one after the other; the folder keeps its results of other engines."""
    folder: Path = arguments.folder
    environments = Environments(folder / "environments", arguments.suite)
    try:
        targets = [*units.share(targets_named(arguments.engines), units.read(arguments.unit))]
        options = Asked(folder, arguments.level, seed_number(arguments.seed), arguments.processes, arguments.minutes)
        (folder / "records").mkdir(parents=True, exist_ok=True)
    except SelectionError as error:
        raise SurveyError(str(error)) from None
    except OSError as error:
        raise SurveyError(f"--folder {folder}: cannot be written ({error.strerror})") from None
    for target in targets:
        requirements(target)  # a mistake in the command line is said before anything is installed
    started, machine = datetime.now(UTC).isoformat(timespec="seconds"), ""
    verified, complete = 0, True
    if not targets:
        print(f"unit {arguments.unit} has no engine")
        return ExitCode.GOOD
    todo = deque(targets)
    while todo:
        target = todo.popleft()
        print(f"{target.name}: ", end="", flush=True)
        result, header, footer = surveyed(target, environments, options)
        if header is not None:
            machine = ", ".join(filter(None, map(header.versions.get, ("processor", "machine", "system"))))
        with survey_file.locked(folder):  # after each, so that an interrupt loses one, and other units add theirs
            earlier = survey_file.read(folder).environments if (folder / survey_file.NAME).exists() else ()
            results = {environment.name: environment for environment in earlier} | {target.name: result}
            survey = Survey(
                started=started,
                suite=conformance.__version__,
                machine=machine,
                level=options.level,
                seed=options.seed,
                environments=tuple(results.values()),
            )
            survey_file.write(survey, folder)
        counts = footer.cases if footer is not None else {}
        words = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if counts.get(status))
        seconds = f"installed in {result.install_s:.0f} s, ran {result.run_s:.0f} s"
        print("; ".join(filter(None, (words, result.reason, seconds))), flush=True)
        verified += sum(counts.get(status, 0) for status in VERIFIED)
        complete &= not result.reason or result.reason.startswith(SAMPLE)
        if header is not None and not target.variants and environments.variants(target):
            todo.appendleft(replace(target, variants=True))
    if not verified:
        return ExitCode.NOTHING
    return ExitCode.GOOD if complete else ExitCode.BAD


def targets_named(names: Sequence[str]) -> list[Wanted]:
    """Return engines by name, or all. Raises SurveyError."""
    choices = engines()
    try:
        require_known("survey", names, choices)
    except SelectionError as error:
        raise SurveyError(str(error)) from None
    return [Wanted(name) for name in dict.fromkeys(names or choices)]


def surveyed(
    target: Wanted, environments: Environments, options: Asked
) -> tuple[Surveyed, Header | None, Footer | None]:
    """Install an engine and run it. An error there is not raised: it is part of the result."""
    begun = time.monotonic()
    try:
        packages = environments.ensure(target)
    except SurveyError as error:
        spent = time.monotonic() - begun
        return Surveyed(name=target.name, engine=target.engine, reason=str(error), install_s=spent), *NONE
    installed = time.monotonic()
    file = Path("records", f"{target.name}.jsonl")
    (options.folder / file).unlink(missing_ok=True)  # an earlier run's
    words = ["run", "--impl", target.implementations, "--level", "smoke" if target.variants else options.level]
    # each variant keeps its process: loading a framework for every case would take all the time
    words += ["--variants", f"--workers={WORKERS}"] if target.variants else []
    words += ["--seed", str(options.seed), "-n", options.processes, f"--records={options.folder.absolute() / file}"]
    words += [f"--minutes={options.minutes}"] if options.minutes else []
    done = subprocess.run(
        [python_of(environments.folder, target), "-m", "conformance", *words],
        capture_output=True, text=True, errors="replace", check=False, cwd=options.folder,
    )  # fmt: skip
    header, footer = ends(options.folder / file)
    reason = "" if footer is not None and not footer.interrupted else _last(done)
    if options.minutes and footer is not None and done.returncode == ExitCode.INTERRUPTED:
        reason = f"{SAMPLE} stopped after {options.minutes} minutes, as asked"
    result = Surveyed(
        name=target.name,
        engine=target.engine,
        packages=packages,
        records=file.as_posix() if header is not None else "",
        reason=reason,
        exit_status=done.returncode,
        install_s=installed - begun,
        run_s=time.monotonic() - installed,
    )
    return result, header, footer


def ends(file: Path) -> tuple[Header | None, Footer | None]:
    """Return the header and the footer of a file of records; None for each that is missing or cannot be read."""
    try:
        runs = read(file)
    except RecordError:
        return NONE
    return (next(iter(runs[0].headers), None), runs[-1].footer) if runs else NONE


def _last(done: subprocess.CompletedProcess[str]) -> str:
    """Return the exit status and the last line of a run that did not end well."""
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"the run ended with {done.returncode}: {said[-1].strip() if said else 'without a word'}"
