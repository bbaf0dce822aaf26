"""A survey as a site: a matrix of all engines, and a page for each environment. It needs neither a server nor a
network.

    index.html              the newest survey
    matrix.json             its counts
    badges/ENGINE.svg
    runs/ID/                one survey, which stays when another one is added
        index.html, matrix.json, survey.json
        ENVIRONMENT/        its report, see `conformance.reporting.page.build`
        records/            what it was made of
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from conformance.reporting.page.build import build as report
from conformance.reporting.page.merge import load
from conformance.reporting.page.model import ReportError
from conformance.reporting.page.tables import Digest
from conformance.survey import badge, model
from conformance.survey.index import SurveyRun, page
from conformance.survey.matrix import Environment, broken, document, lines, usual
from conformance.survey.model import Survey, Surveyed, SurveyError

PAGE, MATRIX, BADGES, RUNS, RECORDS = "index.html", "matrix.json", "badges", "runs", "records"
ODD = re.compile(r"[^A-Za-z0-9._=+-]+")
"""What no folder of the site has in its name: it would have to be escaped in links."""


def build(folder: Path, out: Path) -> tuple[Path, tuple[str, ...]]:
    """Write the site of a survey; return its first page, and what could not be read. Raises SurveyError.

    The survey is added to those that the site has. Everything is written beside the place where it belongs before the
    first file is moved there.
    """
    survey = model.read(folder)
    started = _moment(survey, folder)
    with _beside(out) as beside:
        environments, identity = _read(survey, folder, beside)
        run = SurveyRun(f"{started:%Y-%m-%d}-{identity[:8]}", started, survey)
        earlier = [one for one in runs(out) if one.id != run.id]
        if earlier and earlier[0].started > started:
            raise SurveyError(
                f"{out}: shows the survey of {earlier[0].survey.started}, which is newer than that of "
                f"{survey.started}; add the older one to a site first, or write it into another folder"
            )
        made = _written(run, environments, earlier, beside)
        _moved(made, out)
    errors = tuple(notice for environment in environments for notice in environment.notices)
    return out / PAGE, errors


def runs(out: Path) -> list[SurveyRun]:
    """The surveys that a site has, the newest first; without those that cannot be read."""
    found = []
    for file in out.glob(f"{RUNS}/*/{model.NAME}"):
        with suppress(SurveyError):
            survey = model.read(file.parent)
            found.append(SurveyRun(file.parent.name, _moment(survey, file.parent), survey))
    return sorted(found, key=lambda run: (run.started, run.id), reverse=True)


def _moment(survey: Survey, folder: Path) -> datetime:
    """When it was started."""
    try:
        found = datetime.fromisoformat(survey.started)
    except ValueError:
        raise SurveyError(f"{folder / model.NAME}: started is {survey.started!r}, no time of ISO 8601") from None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder in the site for what is being written; where that fails, no empty folder stays either."""
    made = [parent for parent in (out, *out.parents) if not parent.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".survey-", dir=out) as name:
            yield Path(name)
    except (OSError, ReportError) as error:
        said = error if isinstance(error, ReportError) else f"{out}: cannot be written ({error.strerror or error})"
        raise SurveyError(str(said)) from None
    finally:
        for parent in made:
            with suppress(OSError):  # holds a site
                parent.rmdir()


def _read(survey: Survey, folder: Path, beside: Path) -> tuple[list[Environment], str]:
    """The environments, and a digest of all that they hold. Their records are copied first: a run may write there."""
    found: list[Environment] = []
    identity = hashlib.sha256(msgspec.json.encode(survey))
    taken = {RECORDS, PAGE, MATRIX, model.NAME}
    (beside / RECORDS).mkdir()
    for one in survey.environments:
        slug = _slug(one.name, taken)
        digest: Digest | None = None
        notices: list[str] = []
        if one.records:
            try:
                content = _content(one, folder)
                identity.update(content)
                copy = beside / RECORDS / f"{slug}.jsonl"
                copy.write_bytes(content)
                digest = Digest(load([copy]))
                notices = list(digest.results.errors)
            except (ReportError, SurveyError) as error:
                notices = [str(error)]
        found.append(Environment(one, slug, digest, tuple(notices)))
    return found, identity.hexdigest()


def _content(one: Surveyed, folder: Path) -> bytes:
    """Raises SurveyError for a file that cannot be read, or is not the survey's."""
    file = folder / one.records
    if not file.resolve().is_relative_to(folder.resolve()):
        raise SurveyError(f"{one.name}: its records, {one.records}, are not in the folder of the survey; left out")
    try:
        return file.read_bytes()
    except OSError as error:
        raise SurveyError(f"{file}: cannot be read ({error.strerror}); left out") from None


def _slug(name: str, taken: set[str]) -> str:
    """A name for a folder that no other has, on file systems that ignore case either."""
    short = ODD.sub("-", name).strip("-.")[:80] or "environment"
    slug, number = short, 1
    while slug.casefold() in taken:
        number += 1
        slug = f"{short}-{number}"
    taken.add(slug.casefold())
    return slug


def _written(run: SurveyRun, environments: Sequence[Environment], earlier: Sequence[SurveyRun], beside: Path) -> Path:
    """The new files of the site, in a folder, as they belong into it."""
    made = beside / "site"
    own = made / RUNS / run.id
    (own / RECORDS).mkdir(parents=True)
    (made / BADGES).mkdir()
    kept = []
    for environment in environments:
        one, copy = environment.surveyed, beside / RECORDS / f"{environment.slug}.jsonl"
        packed = Path(RECORDS, f"{copy.name}.gz")
        if environment.digest is not None:
            (own / packed).write_bytes(gzip.compress(copy.read_bytes(), 6, mtime=0))
            report([copy], own / environment.slug, f"{one.name} {environment.version}, {run.date}")
        kept.append(msgspec.structs.replace(one, records=packed.as_posix() if environment.digest else ""))
    model.write(msgspec.structs.replace(run.survey, environments=tuple(kept)), own)
    matrix = msgspec.json.format(msgspec.json.encode(document(run.survey, run.id, environments)), indent=1).decode()
    for folder, top in ((own, False), (made, True)):
        _write(folder / MATRIX, f"{matrix}\n")
        _write(folder / PAGE, page(run, environments, earlier, top))
    for name, text in badges(environments).items():
        _write(made / BADGES / name, text)
    return made


def badges(environments: Sequence[Environment]) -> dict[str, str]:
    """File -> badge, of each engine in its usual version; variants count as well."""
    found = {}
    rows = usual(lines(environments))
    engines: defaultdict[str, list[Environment]] = defaultdict(list)
    for one in environments:
        if not one.surveyed.version:
            engines[one.surveyed.engine].append(one)
    taken: set[str] = set()
    for engine, held in engines.items():
        tallies = [line.tally for line in rows if line.environment in held]
        counts = sum((tally.totals for tally in tallies), Counter[str]())
        counts["error"] += sum(broken(one) for one in held)
        verified = sum(tally.verified for tally in tallies)
        words, colour = badge.words(counts, verified, not any(one.incomplete for one in held))
        title = f"{engine} {held[0].version}: {badge.LABEL}: {words}"
        found[f"{_slug(engine, taken)}.svg"] = badge.svg(words, colour, title)
    return found


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a move may otherwise outlive the bytes


def _moved(made: Path, out: Path) -> None:
    """Move what was made into the site: first what links lead to, last the page that has them."""
    for own in (made / RUNS).iterdir():
        place = out / RUNS / own.name
        place.parent.mkdir(exist_ok=True)
        before = made.parent / "before"
        if place.exists():  # the same survey
            place.replace(before)
        try:
            own.replace(place)
        except OSError:
            if before.exists():
                before.replace(place)
            raise
    (out / BADGES).mkdir(exist_ok=True)
    files = {path.name: path for path in (made / BADGES).iterdir()}
    for other in (out / BADGES).glob("*.svg"):
        if other.name not in files:  # what it says is true of an earlier survey alone
            _write(made / BADGES / other.name, badge.svg("not surveyed", badge.GREY, "conformance: not surveyed"))
    for path in (made / BADGES).iterdir():
        path.replace(out / BADGES / path.name)
    for name in (MATRIX, PAGE):
        (made / name).replace(out / name)
