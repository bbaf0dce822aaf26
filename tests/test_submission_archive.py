"""Archives from anybody: a good one is whole, and each way to spoil one is refused for its own reason."""

from __future__ import annotations

import json
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.problems import PROBLEMS
from conformance.reporting.submission import archive
from conformance.results.writing import encode
from tests.submissions import Members, Spoil, Vendor, lines, listed, relined, repacked, vendor, zipped
from tests.test_results import header

Record = dict[str, Any]
FAR = 1 << 20


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Vendor:
    found = vendor(tmp_path_factory.mktemp("acme"))
    words = ["submit", "--statement", found.path("statement.txt"), "-o", found.path("acme.zip")]
    assert main([str(word) for word in (*words, found.path("records.jsonl"), found.path("bench.json"))]) == 0
    return found


@pytest.fixture
def members(acme: Vendor) -> Members:
    return archive.unpacked(acme.path("acme.zip").read_bytes())


@pytest.fixture
def verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """A function that verifies the bytes of an archive: exit status and what is told. Nothing lands on the disk."""

    def run(content: bytes, *options: str) -> tuple[int, str]:
        path = tmp_path / "acme.zip"
        path.write_bytes(content)
        capsys.readouterr()
        status = main(["verify", str(path), *options])
        told = capsys.readouterr()
        assert list(tmp_path.iterdir()) == [path]
        assert not {c for c in told.out + told.err if not c.isprintable()} - {"\n"}
        return status, told.out + told.err

    return run


def test_a_good_archive_is_whole(acme, verified):
    status, told = verified(acme.path("acme.zip").read_bytes())
    assert status == 0
    assert "complete: every required case of level smoke has a verdict" in told
    assert "signed off by: Jane Doe (jane@acme.example)" in told
    assert "\nfp32 under direct, inputs as given, fp32 accumulation, one rounding to fp32: 23 cases\n" in told
    count = sum(map(is_waived, lines(archive.unpacked(acme.path("acme.zip").read_bytes()))))
    assert count > 0
    assert f"waived: acme conv_forward: a known one (https://acme.example/issues/7), {count} cases" in told
    assert "benchmarks/00.json: 1 times, Acme CPU" in told


def test_the_same_results_are_the_same_bytes(acme, members):
    assert archive.written(members) == acme.path("acme.zip").read_bytes()
    assert repacked(dict(members)) == acme.path("acme.zip").read_bytes()


def of_case(record: Record) -> bool:
    return (record.get("distribution"), record["status"]) == ("fixed", "pass")


def changed(when: Callable[[Record], bool] = of_case, /, **fields: Any) -> Spoil:
    """The first record for which `when` holds says something else."""

    def spoil(members: Members) -> None:
        records = lines(members)
        next(record for record in records if when(record)).update(fields)
        relined(members, records)

    return spoil


def without(when: Callable[[Record], bool]) -> Spoil:
    def spoil(members: Members) -> None:
        records = lines(members)
        records.remove(next(record for record in records if when(record)))
        relined(members, records)

    return spoil


def doubled(when: Callable[[Record], bool] = of_case) -> Spoil:
    def spoil(members: Members) -> None:
        records = lines(members)
        relined(members, [*records, next(record for record in records if when(record))])

    return spoil


def absent(record: Record) -> bool:
    return record["operator"] == "avg_pool_forward" and not {"problem", "check"} & record.keys()


def is_waived(record: Record) -> bool:
    return bool(record["status"] == "waived")


def exceeding(members: Members) -> None:
    records = lines(members)
    record = next(record for record in records if of_case(record))
    record["checks"]["y"]["rms"][0] = 9.0
    relined(members, records)


def stated(old: str, new: str) -> Spoil:
    def spoil(members: Members) -> None:
        members["statement.txt"] = members["statement.txt"].replace(old.encode(), new.encode())

    return spoil


def timed(**fields: Any) -> Spoil:
    def spoil(members: Members) -> None:
        document = json.loads(members["benchmarks/00.json"])
        document["benchmarks"][0]["extra_info"].update(fields)
        members["benchmarks/00.json"] = json.dumps(document).encode()

    return spoil


OTHER = next(problem for problem in PROBLEMS if problem.name == "edge.asymmetric-all")
FORGED: dict[str, Spoil] = {
    "conv_forward: 1 cases have no verdict": without(of_case),
    "fp32 nchw fixed has 2 verdicts": doubled(),
    "avg_pool_forward: 20 cases have no verdict": without(absent),
    "acme: avg_pool_forward: an absence of": doubled(absent),
    "avg_pool_forward: 13 cases have no verdict": changed(absent, cases=7),
    "is not required": changed(dtype="fp64"),
    "the problem of this name is another one here": changed(descriptor="n1 c1 h1 w1 k1 r1 s1"),
    "one case counts as 7": changed(cases=7),
    "fail without a reason": changed(status="fail", reason=" "),
    "unavailable (no such device); run it where": changed(status="unavailable", reason="no such device"),
    "cases that no record names": changed(absent, status="fail", reason="somehow"),
    "rms is 9.0, which exceeds": exceeding,
    "has numbers of no output; its outputs are y": changed(checks={}),
    "waived cases give no link": changed(is_waived, waiver={"reason": "a known one", "url": "issue 7"}),
    "records of seed 1, not that of the goldens": changed(seed=1),
    "records of generator other-v1": changed(generator="other-v1"),
    "source is not the same in all records": changed(source="0" * 64),
    "device is not the same in all records": changed(device="cuda"),
    "run_level is not the same in all records": changed(run_level="full"),
    "numpy is not the same in all records": changed(versions={"numpy": "1.0"}),
    "records of other, which the statement does not name": changed(implementation="other"),
    "conv_forward output_is_written has verdicts on other cases": changed(
        lambda r: (r.get("check"), r["operator"], "problem" in r) == ("output_is_written", "conv_forward", True),
        problem=OTHER.name,
        descriptor=OTHER.geometry.descriptor,
    ),
    "conv_forward calls_repeat has no verdict": lambda members: relined(
        members, [r for r in lines(members) if (r.get("check"), r["operator"]) != ("calls_repeat", "conv_forward")]
    ),
    "cases have no verdict": stated("Level: smoke", "Level: standard"),
    "is timed, although its status is fail": timed(status="fail"),
    "is timed with other sources": timed(source="0" * 64),
}
"""What is told -> how a forger who keeps the manifest right spoils the contents."""


@pytest.mark.parametrize("reason", FORGED)
def test_forged_contents(reason: str, members, verified):
    FORGED[reason](members)
    status, told = verified(repacked(members))
    assert status == 1
    assert reason in "\n".join(line for line in told.splitlines() if line.startswith("REFUSED"))
    assert "complete" not in told


def raw(line: str) -> Spoil:
    def spoil(members: Members) -> None:
        members["records/00.jsonl"] += line.encode() + b"\n"

    return spoil


def spelt(text: str) -> Spoil:
    """Seconds that are spelt in a way that no writer has."""

    def spoil(members: Members) -> None:
        changed(seconds={"total": "spelt"})(members)
        members["records/00.jsonl"] = members["records/00.jsonl"].replace(b'"spelt"', text.encode())

    return spoil


def first(**fields: Any) -> Spoil:
    return changed(lambda record: True, **fields)


MALFORMED: dict[str, Spoil] = {
    "is cut off": raw("{"),
    "is not JSON": raw("nothing"),
    "is not JSON (JSON is malformed: invalid character": spelt("NaN"),
    "number out of range": spelt("1e999"),
    "field seed: expected `int` of at most": changed(seed=10**20),
    "is nested too deep": raw('{"note": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "gives the name total twice": spelt('0.5, "total": 0.1'),
    "is longer than": raw('"' + "a" * FAR + '"'),
    "expected `object`, got `array`": raw("[]"),
    "was cut off or interrupted": raw(encode(header()).decode()),
    "is not UTF-8": lambda m: m.update({"records/00.jsonl": m["records/00.jsonl"] + b"\xff\n"}),
    "line 1: written in schema 1, this version reads schema 2": first(schema=1),
    "line 1: field cases: expected `int`, got `bool`": first(cases=True),
    "line 1: field status: invalid enum value 'good'": first(status="good"),
    "implementation \\x1b[2Jacme is no name": first(implementation="\x1b[2Jacme"),
    "problem \\x3cscript\\x3e is no name": changed(problem="<script>"),
    "operator \\u202econv is no name": first(operator="\u202econv"),
    "field source: expected `str` matching regex": changed(source="abc"),
    "field checks[...][...]: expected `array`": changed(checks={"y": {"rms": 1}}),
    "field versions[...]: expected `str`, got `int`": first(versions={"numpy": 2}),
    "statement.txt has no line 'Contact: ...'": stated("Contact", "Contract"),
    "statement.txt has more than one line 'Level: ...'": stated("Level: smoke", "Level: smoke\nLevel: full"),
    "Contact: somewhere is neither": stated("kernels@acme.example", "somewhere"),
    "Level: endless is not one of": stated("Level: smoke", "Level: endless"),
    "statement.txt is not signed": stated("Signed-off-by", "Signed-by"),
    "Signed-off-by: Jane is not 'Name <mail address>'": stated("Jane Doe <jane@acme.example>", "Jane"),
    "statement.txt holds the control character \\x1b": stated("Acme Inc.", "\x1b]0;title"),
    "statement.txt is longer than": stated("Acme Inc.", "Acme\n" * 5000),
    "benchmarks/00.json, benchmark 1: field status: ": timed(status=None),
}
"""What is told -> how contents are spoilt that are refused before anything is counted."""


@pytest.mark.parametrize("reason", MALFORMED)
def test_malformed_contents(reason: str, members, verified):
    MALFORMED[reason](members)
    status, told = verified(listed(members))
    assert status == 1
    assert reason in told


def replaced(name: str, old: bytes, new: bytes) -> Spoil:
    def spoil(members: Members) -> None:
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return spoil


def lacking(name: str) -> Spoil:
    def spoil(members: Members) -> None:
        del members[name]

    return spoil


DERIVED: dict[str, Spoil] = {
    "environment.json: generator other, here splitmix": replaced("environment.json", b"splitmix64-v1", b"other"),
    "environment.json: suite 9.9": replaced("environment.json", b'"suite": "', b'"suite": "9.9'),
    "environment.json: golden": lambda members: members.update(
        {"environment.json": members["environment.json"].replace(b'"golden": "', b'"golden": "0')}
    ),
    "waivers.json does not say what the records say": replaced("waivers.json", b"a known one", b"a better one"),
    "has no waivers.json": lacking("waivers.json"),
    "has no records": lacking("records/00.jsonl"),
}


@pytest.mark.parametrize("reason", DERIVED)
def test_members_that_do_not_follow_from_the_records(reason: str, members, verified):
    DERIVED[reason](members)
    status, told = verified(listed(members))
    assert status == 1
    assert reason in told


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("records/00.jsonl", b'"pass"', b'"fail"', "records/00.jsonl is not the file that the manifest names"),
        ("manifest.json", b'"format": 1', b'"format": 2', "manifest.json is not of format 1"),
        ("manifest.json", b'"format": 1', b'"format": 1, "more": 1', "manifest.json says more"),
        ("manifest.json", b"records/00.jsonl", b"records/01.jsonl", "does not list exactly the members"),
        ("manifest.json", b"{", b"[", "manifest.json is not JSON"),
    ],
)
def test_a_manifest_that_does_not_hold(name, old, new, reason, members, verified):
    replaced(name, old, new)(members)
    status, told = verified(repacked(members, honest=False))
    assert status == 1
    assert reason in told


def entry(name: str, mode: int = stat.S_IFREG | 0o644, method: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, archive.WHEN)
    info.external_attr, info.compress_type, info.create_system = mode << 16, method, 3
    return info


EXTRA = {
    "member ../evil.json leads out of the archive": (entry("../evil.json"), b"{}"),
    "member records/../../evil leads out": (entry("records/../../evil"), b"{}"),
    "member ..\\evil leads out": (entry("..\\evil"), b"{}"),
    "member /etc/passwd has an absolute name": (entry("/etc/passwd"), b"root"),
    "member C:\\evil has an absolute name": (entry("C:\\evil"), b"x"),
    "member records/01.jsonl is a symbolic link": (entry("records/01.jsonl", stat.S_IFLNK | 0o777), b"/etc/passwd"),
    "member records/01.jsonl is no regular file": (entry("records/01.jsonl", stat.S_IFIFO | 0o644), b""),
    "member records/ is no part of a submission": (entry("records/", stat.S_IFREG), b""),
    "member payload.pkl is no part of a submission": (entry("payload.pkl"), b"cos\nsystem\n"),
    "member \\x1b[2J is no part of a submission": (entry("\x1b[2J"), b""),
    "member records/01.jsonl is packed by method 12": (entry("records/01.jsonl", method=zipfile.ZIP_BZIP2), b"{}"),
    "member statement.txt is there twice": (entry("statement.txt"), b"other"),
    "member records/01.jsonl unpacks to 8388608 bytes": (entry("records/01.jsonl"), b" " * (8 * FAR)),
    "member benchmarks/01.json has 34603008 bytes, at most": (
        entry("benchmarks/01.json", method=zipfile.ZIP_STORED),
        b" " * (33 * FAR),
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("reason", EXTRA)
def test_members_that_do_not_belong(reason: str, members, verified):
    status, told = verified(zipped(members, EXTRA[reason]))
    assert status == 1
    assert reason in told


def test_too_many_members(members, verified):
    names = [(entry(f"records/{number:02d}.jsonl"), b"") for number in range(1, 100)]
    status, told = verified(zipped(members, *names))
    assert status == 1
    assert "has 105 members in a list" in told


def test_a_bomb_of_many_members(members, monkeypatch, verified):
    monkeypatch.setattr(archive, "UNPACKED", 5000)
    status, told = verified(zipped(members))
    assert status == 1
    assert "unpacks to" in told
    assert "at most 5000" in told


def test_a_member_that_lies_about_its_size(members, verified):
    """Small in both headers, large when unpacked: no more is unpacked than was declared."""
    content = bytearray(zipped(members, (entry("records/01.jsonl"), b" " * (8 * FAR))))
    for mark, size, name in ((b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)):
        start = next(
            place
            for place in range(len(content))
            if content.startswith(mark, place) and content.startswith(b"records/01.jsonl", place + name)
        )
        struct.pack_into("<L", content, start + size, 10)
    status, told = verified(bytes(content))
    assert status == 1
    assert "member records/01.jsonl is not as long as it says" in told


ODD: dict[str, Callable[[bytes], bytes]] = {
    "is not a zip file": lambda content: b"#!/bin/sh\n" + content,
    "does not end with a plain list of members": lambda content: content + b"more",
    "holds bytes that belong to no member": lambda content: content[:-22] + b"hidden" + content[-22:],
    "is damaged": lambda content: content[:60] + bytes([content[60] ^ 255]) + content[61:],
}


@pytest.mark.parametrize("reason", ODD)
def test_files_that_are_more_or_less_than_an_archive(reason: str, acme, verified):
    status, told = verified(ODD[reason](acme.path("acme.zip").read_bytes()))
    assert status == 1
    assert reason in told


def test_an_encrypted_member(members, verified):
    content = bytearray(archive.written(members))
    place = content.find(b"PK\x01\x02")
    struct.pack_into("<H", content, place + 8, 1)
    status, told = verified(bytes(content))
    assert status == 1
    assert "is encrypted" in told


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), zlib.compress(b"x")])
def test_files_that_are_no_archive(content: bytes, verified):
    status, told = verified(content)
    assert status == 1
    assert "is not a zip file" in told


def test_a_file_that_is_too_large(acme, verified, monkeypatch):
    monkeypatch.setattr(archive, "PACKED", 1000)
    status, told = verified(acme.path("acme.zip").read_bytes())
    assert status == 1
    assert "is larger than" in told


def test_a_comment_that_is_announced(acme, verified):
    status, told = verified(acme.path("acme.zip").read_bytes()[:-2] + b"\x05\x00")
    assert status == 1
    assert "does not end with a plain list of members" in told


def hiding(members: Members, where: str, count: int = 0) -> bytes:
    """An archive with bytes before a member, before the list of members, or behind a member inside its packed size;
    `count` is added to that size alone."""
    buffer, hidden = BytesIO(), b"hidden"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:

        def put(content: bytes) -> None:
            buffer.write(content)
            file.start_dir = buffer.tell()

        for name, content in (*members.items(), ("list", b"")):
            if where == f"before {name}":
                put(hidden)
            if name == "list":
                break
            file.writestr(name, content)
            if where == f"in {name}":
                info = file.getinfo(name)
                put(b"" if count else hidden)
                info.compress_size += count or len(hidden)
                buffer.seek(info.header_offset + 18)
                buffer.write(struct.pack("<L", info.compress_size))
                buffer.seek(file.start_dir)
    return buffer.getvalue()


HIDDEN = {
    "before statement.txt": "member statement.txt begins differently than the list of members says",
    "before list": "holds bytes that belong to no member",
    "in statement.txt": "member statement.txt is not as long as it says",
}


@pytest.mark.parametrize("where", HIDDEN)
def test_hidden_bytes(where: str, members, verified):
    assert verified(hiding(members, ""))[0] == 0
    status, told = verified(hiding(members, where))
    assert status == 1
    assert HIDDEN[where] in told


def test_a_false_packed_size(members, verified):
    """A member that unpacks to a thousand times its size says that it is packed in more bytes than it is."""
    bomb = {"records/01.jsonl": b" " * (8 * FAR)}
    more = {f"records/{number:02d}.jsonl": secrets.token_bytes(1000) for number in range(2, 60)}
    status, told = verified(hiding(members | bomb | more, "in records/01.jsonl", 40_000))
    assert status == 1
    assert "member records/01.jsonl is not as long as it says, packed or unpacked" in told


def test_a_packed_size_beyond_what_zip_can_say(members, verified):
    content = bytearray(archive.written(members))
    struct.pack_into("<L", content, content.find(b"PK\x01\x02") + 20, 0xFFFFFFFE)
    status, told = verified(bytes(content))
    assert status == 1
    assert "REFUSED" in told  # in the words of zipfile, or in ours


@pytest.mark.parametrize("field", ["extra", "comment"])
def test_more_in_the_list_of_members(field: str, members, verified):
    info = entry("records/01.jsonl")
    setattr(info, field, b"\0\0\4\0more")
    status, told = verified(zipped(members, (info, b"")))
    assert status == 1
    assert "holds bytes that belong to no member" in told


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_is_no_file_is_not_read(kind: str, acme, tmp_path: Path, capsys):
    """A device has no end, and a pipe without a writer never begins."""
    path = {"device": Path("/dev/zero"), "pipe": tmp_path / "pipe", "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    assert main(["verify", str(path)]) == 1
    assert f"REFUSED: {path}: is not a regular file" in capsys.readouterr().out
    results = ["-o", str(tmp_path / "a.zip"), str(acme.path("records.jsonl"))]
    assert main(["submit", "--statement", str(path), *results]) == 4
    assert f"{path}: is not a regular file" in capsys.readouterr().err
