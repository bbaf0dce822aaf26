"""A survey as a site: the report of each environment, and the page of all engines, which links to these. It needs
neither a server nor a network.

    index.html      all engines, and their variants
    ENVIRONMENT/    its report, see `conformance.reporting.page.render`
    records/        the records that the site was made of
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlencode

from conformance.reporting.page import render
from conformance.reporting.page.merge import ResultsFile, merged, read
from conformance.reporting.page.model import Row
from conformance.reporting.page.render import PAGE, texts, write
from conformance.reporting.page.tables import Digest
from conformance.reporting.report_command import ReportError
from conformance.reporting.table import Table
from conformance.survey import survey_file
from conformance.survey.changes import FAILING, SurveyedEnvironment, differences, parted
from conformance.survey.survey_file import Survey, Surveyed, SurveyError

TITLE = "Conformance of convolution, pooling and batch normalisation"
RECORDS = "records"
ODD = re.compile(r"[^A-Za-z0-9._=+-]+")
"""Characters that no folder of the site has in its name: links would have to escape them."""


def build(folder: Path, out: Path) -> tuple[Path, tuple[str, ...]]:
    """Write the site of a survey; return its first page, and the errors in reading records. Raises SurveyError.

    The first page is written last, so that its links lead somewhere.
    """
    survey = survey_file.read(folder)
    environments: list[SurveyedEnvironment] = []
    taken = {RECORDS, PAGE}
    for surveyed in survey.environments:
        slug = _slug(surveyed.name, taken)
        try:
            environments.append(
                SurveyedEnvironment(surveyed, slug, _source(surveyed, folder) if surveyed.records else None)
            )
        except (ReportError, SurveyError) as error:
            environments.append(SurveyedEnvironment(surveyed, slug, error=str(error)))
    try:
        read = {
            environment.slug: folder / environment.surveyed.records
            for environment in environments
            if environment.source
        }
        write(out / RECORDS, {f"{n}.jsonl.gz": gzip.compress(file.read_bytes(), mtime=0) for n, file in read.items()})
        for environment in environments:
            if environment.digest is not None:
                title = f"{environment.surveyed.engine} {environment.version}".strip()
                write(out / environment.slug, texts(environment.digest, title))
        write(out, {PAGE: _page(survey, environments)})
    except (OSError, ReportError) as error:
        raise SurveyError(str(error)) from None
    return out / PAGE, tuple(notice for environment in environments for notice in environment.notices)


def _source(surveyed: Surveyed, folder: Path) -> ResultsFile:
    """Return the records of an environment. Raises ReportError for a file that cannot be read, and SurveyError for one
    that is not in the survey's folder."""
    file = folder / surveyed.records
    if not file.resolve().is_relative_to(folder.resolve()):
        raise SurveyError(
            f"{surveyed.name}: its records, {surveyed.records}, are not in the folder of the survey; left out"
        )
    (source,) = read([file])
    return source


def _slug(name: str, taken: set[str]) -> str:
    """Return a folder name that differs from all in `taken`, on file systems that ignore case too."""
    short = ODD.sub("-", name).strip("-.")[:80] or "environment"
    slug, number = short, 1
    while slug.casefold() in taken:
        number += 1
        slug = f"{short}-{number}"
    taken.add(slug.casefold())
    return slug


def _page(survey: Survey, environments: Sequence[SurveyedEnvironment]) -> str:
    """Return the page of all engines. If several environments have a case, the environment with most cases counts: a
    variant's environment has few cases of its base."""
    usual = [environment for environment in environments if environment.digest]
    usual.sort(key=lambda environment: environment.plain.total())
    owners = {row: environment for environment in usual if environment.digest for row in environment.digest.rows}

    def address(row: Row, operator: str = "") -> str:
        """Return the report of the environment where a row ran, opened at the verdicts of an operator."""
        owner = owners.get(row)
        if owner is None or owner.digest is None:
            return ""
        query = urlencode({"row": owner.digest.name(row), "operator": operator})
        return f"{owner.slug}/{PAGE}" + (f"#?{query}" if operator else "")

    digest = Digest(merged([environment.source for environment in usual if environment.source]))
    context = {
        "survey": survey,
        "command": again(survey),
        "link": address,
        "lead": lead(digest),
        "environments": environments,
        "variants": _variants(environments),
    }
    return render.page(digest, TITLE, context)


def lead(digest: Digest) -> list[tuple[str, str, list[str]]]:
    """Return (status, text, implementations that the text is true of), without variants."""
    said: dict[str, list[str]] = {"fail": [], "pass": [], "unsupported": []}
    for row in digest.rows:
        tile = digest.together(row)
        if not parted(row[0])[1]:
            kind = "unsupported" if tile is None else "fail" if tile.status in FAILING else "pass"
            said[kind].append(digest.name(row))
    words = ("Wrong results, or errors", "All that was verified is right", "Nothing was verified")
    return [(kind, text, names) for text, (kind, names) in zip(words, said.items(), strict=True) if names]


def again(survey: Survey) -> str:
    """Return the command that makes the survey again."""
    engines = dict.fromkeys(environment.engine for environment in survey.environments)
    words = ["conformance", "survey", *engines]
    return shlex.join([*words, "--level", survey.level, "--seed", str(survey.seed)])


def _variants(environments: Iterable[SurveyedEnvironment]) -> Table | None:
    rows = tuple(
        (difference.name, difference.words, f"{difference.broken:,}") for difference in differences(environments)
    )
    return Table("Variants", ("variant", "beside its base", "fail only here"), rows, 2) if rows else None
