"""Writing: what is read and written again is the same, as rows and as bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.api import open as open_log
from rawlog.api import write
from rawlog.core.errors import EncodeError, OptionError
from rawlog.core.tables import RECORDS
from rawlog.reading.rows import Gap
from rawlog.testing.base import Base, RowList, rows_of, same, shared


def records_table(rows: RowList) -> pa.Table:
    """Rows with times in microseconds as a table of `records`."""
    return pa.Table.from_pylist(rows, schema=RECORDS.schema)


def _has_rows(gap: Gap, rows: RowList) -> bool:
    """Whether any row has one of the offsets that a note says are missing."""
    return any(gap.first <= row["offset"] < gap.stop for row in rows)


class Writing(Base):
    """Both round trips, for formats that are written."""

    def test_golden_files_are_written_again_byte_for_byte(self, tmp_path: Path) -> None:
        if self.subject.encode is None:
            return
        for number, path in enumerate(self.golden):
            data = path.read_bytes()
            again = tmp_path / str(number)
            write(again, self.open(path).table("records"), format=self.format, overwrite=False, **self.options(data))
            assert again.read_bytes() == data, path

    @shared
    @given(data=st.data())
    def test_rows_survive_being_written_and_read(self, scratch: Path, data: st.DataObject) -> None:
        strategy = self.records()
        assert strategy is not None or not self.subject.is_written, "a format that is written needs `records`"
        if strategy is None:
            return
        options, rows = data.draw(strategy)
        target = scratch if self.subject.encode is not None else scratch.with_name("written")
        count = write(target, records_table(rows), format=self.format, overwrite=True, **options)
        found, notes = rows_of(self.open(target) if target == scratch else open_log(target), "records")
        same(found, rows)
        # Offsets that the rows leave out may be named where a file ends there; nothing else is.
        others = [one for one in notes if not isinstance(one, Gap) or _has_rows(one, rows)]
        assert (count, others) == (len(rows), [])

    def test_what_cannot_be_written_says_so(self, tmp_path: Path) -> None:
        if self.subject.is_written:
            return
        with pytest.raises(OptionError, match="cannot be written"):
            write(tmp_path / "x", records_table([]), format=self.format)
        assert not list(tmp_path.iterdir())

    def test_columns_that_are_not_carried_are_refused_by_name(self, tmp_path: Path) -> None:
        if self.subject.encode is None:
            return
        key, value = self.content
        row = {
            "key": key, "value": value, "topic": "t", "partition": 3, "offset": 77, "timestamp": 1_706_868_930_123_456,
            "timestampType": 1, "headers": [{"key": "h", "value": None}],
        }  # fmt: skip
        lost = set(row) - self.subject.carries
        for name in sorted(lost):
            refusal = self._refusal(tmp_path / "x", row, lost - {name})
            if refusal is None:
                found, _ = rows_of(self.open(tmp_path / "x"), "records")
                assert found[0][name] == row[name], f"{name} was changed silently"
                (tmp_path / "x").unlink()
            assert refusal is None or name in refusal
            assert not list(tmp_path.iterdir())

    def _refusal(self, path: Path, row: dict[str, object], accepted: set[str]) -> str | None:
        try:
            write(path, records_table([row]), format=self.format, accept_loss=accepted)
        except EncodeError as error:
            return str(error)
        return None
