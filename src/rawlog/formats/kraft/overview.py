"""What `report` shows of a cluster: its brokers, and a map of partitions and the brokers that have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rawlog.core.panel import Look, Panel
from rawlog.core.store import Store
from rawlog.core.verb import Line, Section, Tone
from rawlog.formats.kraft.store import fold

MOST = 2000
Row = Mapping[str, Any]


def overview(files: Store) -> Iterator[Panel]:
    """Brokers, and partitions by broker."""
    options = {"errors": "skip"}
    brokers = [row for batch in fold.brokers(files, options) for row in batch.to_pylist()]
    partitions = [row for batch in fold.partitions(files, options) for row in batch.to_pylist()]
    partitions.sort(key=lambda row: (row["topic"], row["partition"]))
    known = sorted({row["broker"] for row in brokers} | {one for row in partitions for one in row["replicas"]})
    rows = [_broker(row, partitions) for row in sorted(brokers, key=lambda row: row["broker"])]
    head = ("broker", "partitions", "leads", "out of sync", "state", "rack", "endpoints")
    about = "As the metadata log describes the cluster at its end. rawlog cluster shows settings, history and earlier states."
    yield Panel("kraft", Section("Brokers", rows, None, head), about, Look.BARS, files.path)
    cells = [(_name(row), *(_cell(row, one) for one in known)) for row in partitions]
    about = (
        "One row per partition, one column per broker. Leader: serves the partition. In sync: a replica that has everything. "
        "Out of sync: a replica that lags behind. Offline: no broker leads the partition."
    )
    brokers_head = ("partition", *(f"broker {one}" for one in known))
    yield Panel("kraft", Section("Cluster map", cells, MOST, brokers_head), about, Look.MAP, files.path)


def _broker(row: Row, partitions: list[Row]) -> tuple[str | Line, ...]:
    number = row["broker"]
    own = [one for one in partitions if number in one["replicas"]]
    lost = sum(number not in one["isr"] for one in own)
    state = Line("fenced", Tone.BAD) if row["fenced"] else Line("active", Tone.GOOD)
    places = ", ".join(f"{one['host']}:{one['port']}" for one in row["endpoints"] or ())
    leads = sum(one["leader"] == number for one in own)
    out = Line(f"{lost:,}", Tone.BAD if lost else None)
    return str(number), f"{len(own):,}", f"{leads:,}", out, state, row["rack"] or "", places


def _name(row: Row) -> str | Line:
    text = f"{row['topic']}-{row['partition']}"
    return Line(f"{text}: offline", Tone.BAD) if row["leader"] is None else text


def _cell(row: Row, broker: int) -> str | Line:
    if broker not in row["replicas"]:
        return ""
    if row["leader"] == broker:
        return Line("leader", Tone.TITLE)
    return Line("in sync", Tone.GOOD) if broker in row["isr"] else Line("out of sync", Tone.BAD)
