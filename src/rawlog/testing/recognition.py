"""Recognition: a format takes its own files and no others."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rawlog.reading.tree import HEAD, Tree, open_tree
from rawlog.testing.base import Base, shared


@lru_cache(maxsize=4)
def _recognised(root: Path) -> Tree:
    return open_tree(root)


class Recognition(Base):
    """Files are recognised by place, name and first bytes."""

    def test_golden_files_are_recognised_by_what_they_are(self) -> None:
        wrong = []
        for file in _recognised(self.everything):
            owned = self.owns(Path(file.path))
            if owned is not None and owned != (file.format == self.format):
                wrong.append(f"{file.path}: taken for {file.format}")
        assert not wrong, "\n".join(wrong)

    def test_first_bytes_alone_never_claim_a_file_of_another_format(self) -> None:
        sniff = self.subject.sniff
        if sniff is None:
            return
        wrong = []
        for file in _recognised(self.everything):
            path = Path(file.path)
            with path.open("rb") as opened:
                head = opened.read(HEAD)
            if sniff(head, file.size) and self.owns(path) is False:
                wrong.append(file.path)
        assert not wrong, "\n".join(wrong)

    def test_nothing_and_noise_are_no_file_of_this_format(self) -> None:
        sniff = self.subject.sniff
        if sniff is None:
            return
        assert not sniff(b"", 0)
        noise = random.Random(7)
        for _ in range(500):
            data = noise.randbytes(noise.randint(64, 4096))
            assert not sniff(data, len(data)), data[:64].hex()

    def test_empty_and_random_files_of_a_neutral_name_are_unknown(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        (tmp_path / "random").write_bytes(random.Random(7).randbytes(1000))
        assert [file.format for file in open_tree(tmp_path)] == [None, None]

    def test_golden_files_are_recognised_by_their_first_bytes_where_the_format_has_a_mark(self, tmp_path: Path) -> None:
        if self.subject.sniff is None:
            return
        for number, path in enumerate(self.golden):
            if self.marked(path):
                copy = tmp_path / f"copy{number}"
                copy.write_bytes(path.read_bytes())
                assert [file.format for file in open_tree(copy)] == [self.format], path

    @shared
    @given(data=st.data())
    def test_looking_at_first_bytes_never_raises(self, data: st.DataObject) -> None:
        if self.subject.sniff is not None:
            head = data.draw(self.mutations())
            more = data.draw(st.integers(0, 1 << 40))
            self.subject.sniff(head, len(head))
            self.subject.sniff(head, len(head) + more)
