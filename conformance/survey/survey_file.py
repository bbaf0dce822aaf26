"""Results of a survey in its folder: `survey.json`, and a file of records for each environment."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from conformance.files import content_of
from conformance.results.schema import Seconds, Text

NAME, LOCK = "survey.json", ".lock"
"""The file in a survey's folder, and the file that its writer locks."""


class SurveyError(Exception):
    """A survey that cannot be read or made; the message names the file and says what to do."""


class Surveyed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine in one environment.

    name          of the environment, such as "onnxruntime" or "torch-variants"; names its file of records
    engine        the engine, such as "onnxruntime" or "torch": a file or folder of implementations
    packages      what was installed for the engine, by name, with versions
    records       file of records, relative to the folder; empty where there is none
    reason        why there are no records, or why they are not complete: what pip or the run said last
    exit_status   of the run, see `conformance.exit_codes`
    install_s, run_s   seconds that the environment and the run took
    """

    name: Text
    engine: Text
    packages: dict[str, str] = {}
    records: str = ""
    reason: str = ""
    exit_status: int | None = None
    install_s: Seconds = 0.0
    run_s: Seconds = 0.0


class Survey(Struct, frozen=True, kw_only=True):
    """A folder of records, one file for each environment that could be made.

    started   UTC, ISO 8601
    machine   what the processor calls itself, and the system, as records name them
    """

    schema: Literal[1] = 1
    started: Text
    suite: Text
    machine: str
    level: Text
    seed: int
    environments: tuple[Surveyed, ...]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other unit of the survey write in the block, or results of engines would be lost."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(folder: Path) -> Survey:
    """Read the survey in a folder. Raises SurveyError."""
    file = folder / NAME
    try:
        return msgspec.json.decode(content_of(file), type=Survey)
    except OSError as error:
        raise SurveyError(f"{file}: cannot be read ({error.strerror}); `conformance survey` writes it") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SurveyError(f"{file}: {error}; run `conformance survey` anew") from None


def write(survey: Survey, folder: Path) -> None:
    """Replace the survey of a folder, at once or not at all. Raises SurveyError."""
    file, beside = folder / NAME, folder / f".{NAME}"
    try:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(survey), indent=1) + b"\n")
        beside.replace(file)
    except OSError as error:
        raise SurveyError(f"{file}: cannot be written ({error.strerror})") from None
