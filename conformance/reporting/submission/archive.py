"""An archive that is not trusted, read into memory: what is not exactly as `written` makes it is refused, by name."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO

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


def unpacked(content: bytes) -> dict[str, bytes]:
    """The members of an archive's bytes. Raises ArchiveError before anything large is unpacked."""
    _check_end(content)
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
            members = {}
            for info in infos:
                with file.open(info) as member:  # no more than it declares; its checksum is compared on the way
                    members[info.filename] = member.read(info.file_size + 1)
                if len(members[info.filename]) != info.file_size:
                    raise ArchiveError(f"member {shown(info.filename)} is not as long as it says")
            return members
    except ArchiveError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError) as problem:
        raise ArchiveError(f"is damaged ({shown(problem)})") from None


def _check_end(content: bytes) -> None:
    """The list of members is short and the last thing in the file: nothing is hidden before or behind the archive."""
    if not content.startswith(b"PK\x03\x04") or len(content) < END.size:
        raise ArchiveError("is not a zip file")
    mark, disk, first, here, count, size, offset, comment = END.unpack(content[-END.size :])
    if mark != b"PK\x05\x06" or comment or (disk, first) != (0, 0) or here != count:
        raise ArchiveError("does not end with a plain list of members")
    if count > MEMBERS or size > DIRECTORY:
        raise ArchiveError(f"has {count} members in a list of {size} bytes; at most {MEMBERS} in {DIRECTORY}")
    if offset + size + END.size != len(content):
        raise ArchiveError("holds bytes that belong to no member")


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
