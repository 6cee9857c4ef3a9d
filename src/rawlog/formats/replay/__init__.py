"""kafka-replay recordings: values (and from version 2 on keys) of Kafka records, with a time in whole seconds."""

from __future__ import annotations

from rawlog.formats.replay import layouts
from rawlog.formats.replay.layouts import ENTRIES
from rawlog.model.format import Family, Format
from rawlog.model.table import RECORDS

RECORDING = Format(
    name="replay.recording",
    has_rules=True,
    title="kafka-replay recording, file format v0, v1 and v2",
    files="any name; messages.log by default",
    module=f"{__name__}.recording",
    tables=(RECORDS, ENTRIES),
    carries=frozenset({"value"}),  # whole seconds only, no headers, an empty key reads as none
    sniff=layouts.sniff,
)

FAMILY = Family(
    name="replay",
    title="kafka-replay",
    formats=(RECORDING,),
    options=("topic",),
    is_single=True,
    store=f"{__name__}.store:Recording",
)
