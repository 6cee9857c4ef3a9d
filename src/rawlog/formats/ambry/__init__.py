"""Ambry: the blob store of one partition replica, as its directory holds it."""

from __future__ import annotations

from rawlog.format import Deferred, Family, Format
from rawlog.formats.ambry import layouts, paths
from rawlog.formats.ambry.tables import MESSAGES
from rawlog.tables import RECORDS

_READER = "rawlog.formats.ambry.reader"

LOG = Format(
    name="ambry.log",
    title="log segment of a blob store, message header V1 to V3",
    files="<position>_<generation>_log, log_current",
    layouts=(layouts.SEGMENT_HEADER, layouts.HEADER_V3, layouts.HEADER_V2, layouts.HEADER_V1),
    tables=(RECORDS, MESSAGES),
    match=paths.is_log,
    sniff=paths.sniff_log,
    begin=paths.begin,
    scan=Deferred(_READER, "scan"),
    decode=Deferred(_READER, "decode"),
    spans=Deferred(_READER, "spans"),
    resync=Deferred(_READER, "resync"),
    fault=Deferred(_READER, "fault"),
)

FAMILY = Family(name="ambry", title="LinkedIn Ambry", formats=(LOG,))
