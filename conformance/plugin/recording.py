"""Records and tests: how a record travels with a test's report, where a run writes records, and which tests have one
there already, from a run that was cut off."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.execution.case import Absence, Case
from conformance.execution.plan import Plan
from conformance.execution.selection import Selection
from conformance.execution.status import Verdict
from conformance.implementations.devices import Unavailable
from conformance.plugin import options, run_command
from conformance.reporting import report_command
from conformance.results import build
from conformance.results.reading import RecordError, earlier, read, shown
from conformance.results.schema import SCHEMA, AnyRecord, Attempt, Record, TrainingRecord, TrainingRun
from conformance.results.writing import Records, RecordsError, encode, require_creatable
from conformance.training.tables import DISTRIBUTION as TRAINING
from conformance.training.tables import OPERATOR as TRAINING_OPERATOR
from conformance.training.training_demand import Training

PROPERTY = "conformance"
"""Name of the user property of a test that carries its record, as a JSON line."""
BESIDE = "conformance-beside"
"""The same, of a case that a test has verified beside its own."""
BEGUN = "conformance-begun"
"""The same, before a kernel is called: the record of a test that takes its worker down."""
TESTS = "conformance-tests"
"""How many tests the run has, with every test of the suite; 0 where other tests are among them."""
ABSENCES = "conformance-absences"
"""The records of what is not here and is no test, all of them with the first test of the run."""
CATEGORIES = {"pass": "passed", "fail": "failed", "error": "error"}
"""Status -> pytest's own category; other statuses are categories of their own."""
LETTERS = {"pass": ".", "fail": "F", "error": "E", "unsupported": "u", "waived": "w", "unavailable": "-"}
RESUMED = "conformance-resumed"
"""What a worker is told: the file, and how many bytes of it were there when the run began."""
SELECTING = {
    **{
        f"--{name}": name
        for name in ("impl", "problem", "operator", "dtype", "layout", "distribution", "storage", "programs", "slice")
    },
    **{
        "-k": "keyword",
        "-m": "markexpr",
        "--deselect": "deselect",
        "--ignore": "ignore",
        "--ignore-glob": "ignore_glob",
    },
    **{"--splits": "splits", "--group": "group"},
}
"""Options that choose what is run, with the names that pytest stores them under."""
Key = tuple[Any, ...]

decoded = lru_cache(maxsize=2)(msgspec.json.Decoder(AnyRecord).decode)
"""Of our own lines, which need not be searched for what a stranger might write; several hooks ask for the same one."""


def encoded(record: Record) -> str:
    """The text of a record, for user properties."""
    return encode(record).decode()


def publish(item: pytest.Item, record: Record, under: str = PROPERTY) -> None:
    """Hand a record to whoever counts and writes."""
    item.user_properties.append((under, encoded(of_run(item.config, record))))


def of_run(config: pytest.Config, record: Record) -> Record:
    """The record with what is the same for all of the run."""
    level = config.getoption("--level")
    return msgspec.structs.replace(record, run_level=level, in_process=options.in_process(config))


def record_of(report: Any) -> Record | None:
    """The record of a test whose call ended; None for other phases and other tests."""
    if getattr(report, "when", None) != "call":
        return None
    text = dict(report.user_properties).get(PROPERTY)
    return None if text is None else decoded(str(text))


def tests_of(test: Any) -> int | None:
    """How many tests the run of a test, or of its report, has: 0 with other tests among them, None of other tests."""
    tests: int | None = dict(test.user_properties).get(TESTS)
    return tests


def opened(config: pytest.Config, selection: Selection) -> Records | None:
    """The records of a run: the file that `--records` names, or one beside the report that is made from it.

    Whether a report can be made is known before minutes are spent on what belongs in it.
    The report's own file is replaced, if the run that wrote it came to its end.
    """
    given, folder = config.getoption("--records"), config.getoption("--report")
    resume, overwrite = config.getoption("--resume"), config.getoption("--overwrite")
    if resume and overwrite:
        raise pytest.UsageError("--resume and --overwrite: give one of them")
    if (resume or overwrite) and given is None and folder is None:
        raise pytest.UsageError(f"--{'resume' if resume else 'overwrite'}: give the file, --records=FILE")
    if config.option.collectonly or (given is None and folder is None):
        return None
    if folder is not None:
        try:
            report_command.require()
            require_creatable(Path(folder) / "index.html")
        except Unavailable as absence:
            raise pytest.UsageError(f"--report: {absence}") from None
        except OSError as error:
            raise pytest.UsageError(f"--report {folder}: cannot be written ({error.strerror})") from None
    path = Path(given or Path(folder) / "records.jsonl")
    values = {option: getattr(config.option, name, None) for option, name in SELECTING.items()} | {"tests": config.args}
    chosen = {
        name: (str(value),) if isinstance(value, (str, int)) else tuple(map(str, value))
        for name, value in values.items()
        if value
    }
    try:
        level = config.getoption("--level")
        header = build.header(_words(config), level, selection.seed, selection.method, chosen)
        overwrite = overwrite or (given is None and _finished(path))
        records = Records(path, header, resume=resume, overwrite=overwrite)
    except (OSError, RecordsError) as error:
        raise unwritable(path, error) from None
    config.add_cleanup(records.close)
    return records


def _words(config: pytest.Config) -> tuple[str, ...]:
    """The command line."""
    words = tuple(map(str, config.invocation_params.args))
    if run_command.is_running(config):
        return "conformance", "run", *words[len(run_command.ARGUMENTS) :]
    return "pytest", *words


def _finished(path: Path) -> bool:
    try:
        for run in read(path):
            run.require_whole()
    except RecordError:
        return False
    return True


def unwritable(path: Path, error: OSError | RecordsError) -> pytest.UsageError:
    """Ends a run with 4."""
    reason = f"cannot be written ({error.strerror})" if isinstance(error, OSError) else str(error)
    return pytest.UsageError(f"--records {path}: {reason}")


def recorded(config: pytest.Config, records: Records | None) -> Counter[Key]:
    """What has a record already, as often as it has one. A worker reads what was there when the run began: all workers
    must collect the same tests, also one that replaces another in the middle of the run."""
    found = records.earlier.records if records is not None else ()
    if told := getattr(config, "workerinput", {}).get(RESUMED):
        path, size = told
        with Path(path).open("rb") as file:
            found = earlier(file.read(size)).records
    return Counter(map(key_of, found))


def require_same_sources(records: Records, plan: Plan) -> None:
    """Raises pytest.UsageError where an implementation is not the one that the resumed records are about."""
    known = plan.registry.implementations
    for record in records.earlier.records:
        name = record.implementation
        if isinstance(record, Attempt) and (name not in known or known[name].source != record.source):
            what = "was changed since" if name in known else "is not here"
            raise pytest.UsageError(
                f"--records {records.path}: cannot be resumed: {shown(name)} {what}; begin again with --overwrite"
            )


def key_of(record: Record) -> Key:
    """What tells the records of a run apart."""
    case = (record.problem, record.dtype, record.layout, record.distribution, record.storage)
    counted = () if record.problem else (record.status, record.reason, record.cases)
    return record.implementation, record.operator, record.check, *case, *counted


def key(item: pytest.Item) -> Key:
    """That of the record that a test will have; empty for tests that are not the suite's."""
    if published := dict(item.user_properties).get(PROPERTY):
        return key_of(decoded(str(published)))
    case, check = asked(item)
    if isinstance(case, Absence):
        return key_of(build.absence_record(case, check))
    if isinstance(case, Training):
        network = case.configuration.network
        return case.implementation.name, TRAINING_OPERATOR, "", network, "fp32", case.layout, TRAINING, ""
    if isinstance(case, Case):
        v = case.variant
        where = (case.problem.name, v.dtype, v.layout, v.distribution, v.storage)
        return case.implementation.name, case.operator.name, check, *where
    return ()


def asked(item: pytest.Item) -> tuple[Case | Training | Absence | None, str]:
    """What a test is to verify, and the name of its behaviour check, if it makes one."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    case = parameters.get("case")
    if not isinstance(case, (Case, Training, Absence)):
        return None, ""
    return case, parameters["name"] if item.get_closest_marker("behaves") else ""


def lost(item: pytest.Item) -> Record | None:
    """The record of a test whose process did not live to make another; None where nothing is to be run."""
    case, check = asked(item)
    if isinstance(case, Case):
        verdict = Verdict("error")
        return build.behaviour_record(case, verdict, check) if check else build.record(case, verdict)
    if not isinstance(case, Training):
        return None
    one, network = case.implementation, case.configuration.network
    return TrainingRecord(
        schema=SCHEMA, implementation=one.name, operator=TRAINING_OPERATOR, device=one.device, status="error", cases=1,
        versions=build.versions(), reason="", source=one.source, problem=network, dtype="fp32", layout=case.layout,
        distribution=TRAINING, seed=case.seed, checks={}, seconds={}, command=case.command, level=case.level,
        contracts={}, training=TrainingRun(network=network, steps=0, verified=0),
    )  # fmt: skip
