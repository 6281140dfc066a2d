"""Packs a graph's JSON as dense.pt2, a zip with exactly one stored member.

torch's own archives carry pickles beside the graph. Ours cannot: the writer makes one determined sequence of bytes from
the JSON, and the reader makes it again and compares, so the zip cannot hide anything else.
"""

from __future__ import annotations

import io
import zipfile

from storage.errors import UnsafeArtifact

MEMBER = "graph.json"
MAX_GRAPH_BYTES = 64 << 20
MAX_ARCHIVE_BYTES = MAX_GRAPH_BYTES + 1024


def pack_graph(document: bytes) -> bytes:
    """Returns the archive of a graph's JSON; the same JSON gives the same bytes."""
    buffer = io.BytesIO()
    info = zipfile.ZipInfo(MEMBER, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o644 << 16
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(info, document)
    return buffer.getvalue()


def unpack_graph(name: str, data: bytes) -> bytes:
    """Returns the graph's JSON. Raises UnsafeArtifact naming the file and the member that must not be there."""
    if len(data) > MAX_ARCHIVE_BYTES:
        raise UnsafeArtifact(f"{name}: {len(data)} bytes, at most {MAX_ARCHIVE_BYTES} are read")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            for member in members:
                if member.filename != MEMBER:
                    raise UnsafeArtifact(f"{name}: holds the member {member.filename!r}; only {MEMBER!r} is accepted")
            if len(members) != 1:
                raise UnsafeArtifact(f"{name}: holds {len(members)} members named {MEMBER!r}, expected one")
            member = members[0]
            if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 0x1:
                raise UnsafeArtifact(f"{name}: {MEMBER!r} is compressed or encrypted; only stored members are read")
            if member.file_size != member.compress_size or member.file_size > len(data):
                raise UnsafeArtifact(f"{name}: {MEMBER!r} claims {member.file_size} bytes")
            document = archive.read(member)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise UnsafeArtifact(f"{name}: not a readable archive ({error})") from None
    if pack_graph(document) != data:
        raise UnsafeArtifact(f"{name}: holds bytes beside its one member; only archives written by emberline are read")
    return document
