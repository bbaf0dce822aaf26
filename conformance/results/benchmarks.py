"""Benchmark files of pytest-benchmark: the parts that are used, and the record of each verdict inside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from conformance.results.reading import RecordError, decode, strict_json
from conformance.results.schema import Count, Extras, Record, Sha256

Round = Annotated[float, Meta(gt=1e-15, lt=1e9)]
"""Seconds of a round; in this range the interval of a ratio of any two times consists of two numbers."""
UNKNOWN = "unknown"


class Cpu(Struct, frozen=True):
    brand_raw: str | None = None
    count: Count | str | None = None


class MachineInfo(Struct, frozen=True):
    """Facts about the machine that pytest-benchmark writes."""

    cpu: Cpu = Cpu()
    machine: str = UNKNOWN
    system: str = UNKNOWN
    release: str = UNKNOWN
    python_version: str = UNKNOWN

    @property
    def facts(self) -> dict[str, str]:
        """Facts in words, by name."""
        return {
            "CPU": self.cpu.brand_raw or UNKNOWN,
            "cores": str(self.cpu.count or UNKNOWN),
            "architecture": self.machine,
            "system": self.system,
            "kernel": self.release,
            "Python": self.python_version,
        }


class Stats(Struct, frozen=True):
    """Seconds; `data` has the seconds of every round, if the file was written with them."""

    median: Round | None = None
    data: tuple[Round, ...] = ()


class _Named(Struct, frozen=True):
    implementation: Any = None


_NAMED, _EXTRAS = msgspec.json.Decoder(_Named), msgspec.json.Decoder(Extras)


class Benchmark(Struct, frozen=True):
    """A benchmark; `extra_info` holds a record if the benchmark is the suite's."""

    stats: Stats
    extra_info: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def is_ours(self) -> bool:
        with suppress(msgspec.DecodeError, RecursionError):
            return _NAMED.decode(self.extra_info).implementation is not None
        return False

    def record(self) -> Record:
        """Return the record in `extra_info`. Raises RecordError."""
        return decode(bytes(self.extra_info))

    def extras(self) -> Extras:
        """Return the fields beside the record in `extra_info`. Raises RecordError."""
        return strict_json(bytes(self.extra_info), _EXTRAS)


class Bound(Struct, frozen=True):
    """Field that this suite adds: the digest of times and records, see `digest_of`."""

    digest: Sha256


class BenchmarkFile(Struct, frozen=True):
    """A benchmark file; files of earlier versions have no digest."""

    machine_info: MachineInfo
    benchmarks: tuple[Benchmark, ...]
    datetime: str = ""
    conformance: Bound | None = None

    def verified(self, name: str) -> Iterator[tuple[str, Benchmark]]:
        """Yield the benchmarks of the suite, each with its place in words; others do not concern conformance."""
        for number, benchmark in enumerate(self.benchmarks, 1):
            if benchmark.is_ours:
                yield f"{name}, benchmark {number}", benchmark


class _Held(Struct):
    benchmarks: msgspec.Raw


_HELD = msgspec.json.Decoder(_Held)
_DOCUMENT = msgspec.json.Decoder(BenchmarkFile)


def is_document(content: bytes) -> bool:
    """Return whether a file is pytest-benchmark's, on any number of lines, and not a file of records."""
    if content.split(b"\n", 1)[0].strip() == b"{":
        return True
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bool(_HELD.decode(content))
    return False


def document(content: bytes) -> BenchmarkFile:
    """Return the benchmark file in bytes. Raises RecordError, also if it differs from what was written."""
    try:
        file = strict_json(content, _DOCUMENT)
    except RecordError as problem:
        raise RecordError(f"{problem}; write it with pytest --benchmark-json=FILE") from None
    if file.conformance is not None and digest_of(json.loads(content)) != file.conformance.digest:
        raise RecordError("is not what its run wrote, by its digest: times or records were changed; run again")
    return file


def digest_of(file: dict[str, Any]) -> str:
    """Return the SHA-256 of the suite's times and records in a benchmark file, however the file is formatted."""
    ours = [benchmark for benchmark in file["benchmarks"] if "implementation" in benchmark.get("extra_info", {})]
    facts = [(benchmark["stats"], benchmark["extra_info"]) for benchmark in ours]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
