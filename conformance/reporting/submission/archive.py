"""An archive that is not trusted, read into memory: what is not exactly as `written` makes it is refused, by name."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from conformance.results.reading import shown

PACKED = 1 << 26
"""Bytes of an archive."""
UNPACKED = 1 << 28
"""Bytes of all members."""
PARSED = 1 << 25
"""Bytes of a member that is read as a whole, as records are not."""
MEMBERS = 100
RATIO = 250
"""Unpacked over packed bytes of a member: records shrink to a fortieth, a bomb to a thousandth."""
SMALL = 1 << 16
"""Bytes of a member whose ratio does no harm."""
DIRECTORY = MEMBERS * 512
"""Bytes of the list of members."""
KNOWN = re.compile(r"manifest\.json|statement\.txt|environment\.json|waivers\.json|"
                   r"records/\d{2}\.jsonl|benchmarks/\d{2}\.json", re.ASCII)  # fmt: skip
END = struct.Struct("<4s4H2LH")
"""The end of a list of members, without a comment: APPNOTE.TXT 4.3.16."""
LISTED = 46
"""Bytes of a member in the list, beside its name: APPNOTE.TXT 4.3.12."""
DAMAGED = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    OverflowError,
)
"""What zipfile and zlib raise of bytes that are no archive."""
HIDDEN = "holds bytes that belong to no member"
WHEN = (1980, 1, 1, 0, 0, 0)
"""The first moment that a zip file can name: archives of the same results are the same bytes."""


class ArchiveError(ValueError):
    """An archive that is refused; the message is the reason."""


def written(members: Mapping[str, bytes]) -> bytes:
    """A zip file, the same bytes for the same members (and the same zlib)."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, WHEN)
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            file.writestr(info, members[name])
    return buffer.getvalue()


def read(path: Path, most: int) -> bytes:
    """The bytes of a file. Raises ArchiveError for more than `most`, and for what is no file, OSError as usual.

    A device has a size of zero and no end, and a pipe may have no writer.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ArchiveError("is not a regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ArchiveError(f"is larger than {most >> 20} MiB")
    return content


def unpacked(content: bytes) -> dict[str, bytes]:
    """The members of an archive's bytes. Raises ArchiveError before anything large is unpacked."""
    start = _check_end(content)
    try:
        with zipfile.ZipFile(BytesIO(content)) as file:
            infos = file.infolist()
        names = [info.filename for info in infos]
        for info in infos:
            _check(info)
            if names.count(info.filename) > 1:
                raise ArchiveError(f"member {shown(info.filename)} is there twice")
        total = sum(info.file_size for info in infos)
        if total > UNPACKED:
            raise ArchiveError(f"unpacks to {total} bytes, at most {UNPACKED}")
        members, place = {}, 0
        for info in infos:
            header = info.FileHeader(zip64=False)
            if info.header_offset != place or not content.startswith(header, place):
                raise ArchiveError(f"member {shown(info.filename)} begins differently than the list of members says")
            place += len(header) + info.compress_size
            members[info.filename] = _content(info, content[place - info.compress_size : place])
        listed = sum(LISTED + len(name) for name in names)
        if (place, listed) != (start, len(content) - END.size - start):
            raise ArchiveError(HIDDEN)
        return members
    except ArchiveError:
        raise
    except DAMAGED as problem:
        raise ArchiveError(f"is damaged ({shown(problem)})") from None


def _content(info: zipfile.ZipInfo, packed: bytes) -> bytes:
    """A member, unpacked no further than to the length that it declares: all of it, from all of its packed bytes."""
    if info.compress_type == zipfile.ZIP_STORED:
        content, whole = packed, True
    else:
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        content = decoder.decompress(packed, info.file_size + 1)
        whole = decoder.eof and not decoder.unused_data
    if not whole or len(content) != info.file_size:
        raise ArchiveError(f"member {shown(info.filename)} is not as long as it says, packed or unpacked")
    if zlib.crc32(content) != info.CRC:
        raise ArchiveError(f"is damaged (the checksum of member {shown(info.filename)} differs)")
    return content


def _check_end(content: bytes) -> int:
    """Where the list of members starts: it is short, and the last thing in the file."""
    if not content.startswith(b"PK\x03\x04") or len(content) < END.size:
        raise ArchiveError("is not a zip file")
    mark, disk, first, here, count, size, offset, comment = END.unpack(content[-END.size :])
    if mark != b"PK\x05\x06" or comment or (disk, first) != (0, 0) or here != count:
        raise ArchiveError("does not end with a plain list of members")
    if count > MEMBERS or size > DIRECTORY:
        raise ArchiveError(f"has {count} members in a list of {size} bytes; at most {MEMBERS} in {DIRECTORY}")
    if offset + size + END.size != len(content):
        raise ArchiveError(HIDDEN)
    return int(offset)


def _check(info: zipfile.ZipInfo) -> None:
    """Raises ArchiveError for a member that `written` would not make."""
    name, kind, size = info.orig_filename, stat.S_IFMT(info.external_attr >> 16), info.file_size
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    defects = {
        "has an absolute name": name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name),
        "leads out of the archive": ".." in re.split(r"[/\\]", name),
        "is a symbolic link": stat.S_ISLNK(kind),
        "is no regular file": kind not in (0, stat.S_IFREG),
        "is no part of a submission": info.filename != name or not KNOWN.fullmatch(name),
        f"has {size} bytes, at most {PARSED}": size > PARSED and not name.startswith("records/"),
        "is encrypted": info.flag_bits & 0x1,
        f"is packed by method {info.compress_type}": info.compress_type not in methods,
        f"unpacks to {size} bytes from {info.compress_size}, more than {RATIO} times": size > SMALL
        and size > RATIO * info.compress_size,
    }
    for defect, found in defects.items():
        if found:
            raise ArchiveError(f"member {shown(name)} {defect}")
