"""kafka-replay recordings: values (and from version 2 on keys) of Kafka records, with a time in whole seconds."""

from __future__ import annotations

from rawlog.formats.replay import layouts
from rawlog.formats.replay.layouts import (
    ENTRIES,
    ENTRY_V0,
    ENTRY_V1,
    ENTRY_V2,
    FILE_HEADER,
)
from rawlog.model.format import (
    Deferred,
    Family,
    Format,
    Rewrite,
)
from rawlog.model.table import RECORDS

_READER = "rawlog.formats.replay.recording"

RECORDING = Format(
    name="replay.recording",
    title="kafka-replay recording, file format v0, v1 and v2",
    files="any name; messages.log by default",
    layouts=(FILE_HEADER, ENTRY_V2, ENTRY_V1, ENTRY_V0),
    tables=(RECORDS, ENTRIES),
    carries=frozenset({"value"}),  # whole seconds only, no headers, an empty key reads as none
    sniff=layouts.sniff,
    begin=layouts.begin,
    presume=layouts.presume,
    scan=Deferred(_READER, "scan"),
    decode=Deferred(_READER, "decode"),
    decode_together=Deferred(_READER, "decode_together"),
    spans=Deferred(_READER, "spans"),
    resync=Deferred(_READER, "resync"),
    fault=Deferred(_READER, "fault"),
    summary=Deferred("rawlog.formats.replay.store", "Recorded"),
    explain=Deferred("rawlog.formats.replay.recording", "explain_entry"),
    explain_header=Deferred("rawlog.formats.replay.recording", "explain_header"),
    encode=Deferred("rawlog.formats.replay.writer", "encode"),
    losses=Deferred("rawlog.formats.replay.writer", "losses"),
    rules=Deferred("rawlog.formats.replay.recording", "rules"),
)

FAMILY = Family(
    name="replay",
    title="kafka-replay",
    formats=(RECORDING,),
    options=("topic",),
    is_single=True,
    group_rules=Deferred("rawlog.formats.replay.store", "rules"),
    accounts=Deferred("rawlog.formats.replay.store", "accounts"),
    rewrites={
        "repair": Rewrite(
            do=Deferred("rawlog.formats.replay.store", "repair"),
            join=Deferred("rawlog.formats.replay.store", "join"),
            one_file=True,
        ),
        "erase": Rewrite(
            do=Deferred("rawlog.formats.replay.store", "erase"),
            one_file=True,
            keeps=True,
            renumbers=True,
        ),
    },
)
