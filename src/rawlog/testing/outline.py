"""All that rawlog says of a file, as text: for comparing one way of running it with another."""

from __future__ import annotations

import json

import pyarrow as pa

from rawlog.model.errors import RawlogError
from rawlog.reading.inspect import inspect_file
from rawlog.registry import formats
from rawlog.testing.base import plain
from rawlog.verbs.cat import open as open_log


def outline(path: str, format: str) -> str:
    """Every table, finding and explained frame of a file, in a text that is equal for equal answers."""
    log = open_log(path, format=format)
    subject = formats()[format]
    lines: list[object] = []
    for table in subject.tables:
        for errors in ("raise", "stop", "skip"):
            rows = log.table(table.name, errors=errors)
            try:
                for batch in rows.batches():
                    lines += [repr(row) for row in plain(pa.Table.from_batches([batch]))]
            except RawlogError as error:
                lines.append(str(error))
    lines += [finding.as_row() for finding in inspect_file(log.files[0])]
    return "\n".join(json.dumps(line, default=str) for line in lines)
