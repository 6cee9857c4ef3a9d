"""Journals: numbered entries with a key and a value, in a directory of segments with an index each."""

from __future__ import annotations

from typing import Any

from rawlog.model.format import (
    Deferred,
    Family,
    Format,
    Rewrite,
)
from rawlog.model.table import RECORDS
from tests.sixth.journal import paths
from tests.sixth.journal.layouts import ENTRY, FILE_HEADER, POSITION
from tests.sixth.journal.tables import ENTRIES, POSITIONS


def _from(module: str, **names: str) -> dict[str, Any]:
    """Abilities by the names of their functions in a module of this family, imported when they are first used."""
    return {ability: Deferred(f"{__name__}.{module}", name) for ability, name in names.items()}


SEGMENT = Format(
    name="journal.segment",
    title="journal segment, version 1",
    files="<journal>/<20 digits>.journal",
    layouts=(FILE_HEADER, ENTRY),
    tables=(RECORDS, ENTRIES),
    carries=frozenset({"key", "value", "topic", "timestamp"}),
    ordered=True,
    match=paths.place_of("journal"),
    sniff=paths.sniff,
    begin=paths.begin,
    **_from("reader", scan="scan", decode="decode", spans="spans", resync="resync", fault="fault"),
    **_from("checks", rules="rules"),
    **_from("explain", explain="explain_entry", explain_header="explain_header"),
    **_from("store.state", summary="SegmentSummary", cuts="cuts"),
    **_from("store.rewrite", write="write"),
    **_from("writer", losses="losses"),
)

INDEX = Format(
    name="journal.positions",
    title="where every eighth entry of a segment begins",
    files="<journal>/<20 digits>.positions",
    layouts=(POSITION,),
    tables=(POSITIONS,),
    match=paths.place_of("positions"),
    **_from("reader", scan="scan_positions", decode="decode_positions"),
    **_from("checks", rules="index_rules"),
    **_from("explain", explain="explain_position"),
    **_from("store.state", summary="IndexSummary"),
)

FAMILY = Family(
    name="journal",
    title="Journal",
    formats=(SEGMENT, INDEX),
    **_from("store.checks", group_rules="group_rules"),
    rewrites={"repair": Rewrite(**_from("store.rewrite", do="repair", stores="stores"))},
)
