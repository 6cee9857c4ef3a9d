"""The bytes of kafka-replay recordings.

Authority: kafka-replay v2.3.0 (pkg/transcoder) for versions 1 and 2, v0.10.0 for the headerless version 0; checked
against recordings those releases made. All integers are big-endian.
"""

from __future__ import annotations

from rawlog.core.layout import Field, Layout

VERSIONS = (1, 2)
LARGEST = 104_857_600  # bytes of a key or value that the original reads (100 MiB)
NO_TIME_SECONDS = -62_135_596_800  # Go's zero time: the record had no timestamp, or one not above 0
LATEST_CREDIBLE = 10**11  # seconds; beyond it milliseconds were stored by mistake

FILE_HEADER = Layout(
    "file header",
    Field("version", ">i4", "1 or 2; version 0 has no header"),
    Field("reserved", "S16", "written as zeros, not looked at by the original reader"),
)

ENTRY_V2 = Layout(
    "entry v2",
    Field("timestamp", ">i8", "the Kafka record's timestamp in whole seconds"),
    Field("key_size", ">i8", "0 to 104 857 600; 0 is no key or an empty one"),
    Field("value_size", ">i8", "0 to 104 857 600; 0 is no value or an empty one"),
)

ENTRY_V1 = Layout(
    "entry v1",
    Field("timestamp", ">i8", "the Kafka record's timestamp in whole seconds"),
    Field("value_size", ">i8", "0 to 104 857 600"),
)

TIME_V0_SIZE = 27

ENTRY_V0 = Layout(
    "entry v0",
    Field("time", f"S{TIME_V0_SIZE}", "YYYY-MM-DDTHH:MM:SS.ffffffZ, the clock of the recording machine"),
    Field("value_size", ">i8", "0 to 104 857 600"),
)

ENTRIES = {0: ENTRY_V0, 1: ENTRY_V1, 2: ENTRY_V2}
