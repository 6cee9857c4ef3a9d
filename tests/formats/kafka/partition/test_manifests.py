"""Manifests of remote segments show what every format must (`rawlog.testing`), as far as it has no tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rawlog.formats.kafka.manifest import LARGEST_NUMBER, parse
from rawlog.testing import FormatTests
from rawlog.testing.formats import shared, survives
from tests.data.golden import GOLDEN
from tests.data.tiers import FIXED_MANIFEST, VARIABLE_MANIFEST


class TestManifest(FormatTests):
    """How a remote segment is stored; what the plug-in's own tests show."""

    format = "kafka.manifest"
    everything = GOLDEN
    golden: tuple[Path, ...] = ()
    small = (re.sub(r',"remoteLogSegmentMetadata.*', "}", FIXED_MANIFEST).encode(), VARIABLE_MANIFEST.encode())
    name = "orders-lZ6vvmajTWKDBUTV6SQAtQ/42/00000000000000000000-adh9f8BMS4anaUnD8KWfWg.rsm-manifest"

    def least(self, data: bytes) -> int:
        return len(data)

    def test_golden_files_hold_what_is_expected(self) -> None:
        """There is none: the plug-in is not among the systems that the tests start."""

    def test_a_file_cut_at_any_byte_gives_its_whole_frames(self, scratch: Path) -> None:
        """It gives nothing: a manifest counts as a whole, as for the plug-in."""
        for data in self.small:
            for cut in range(len(data)):
                found = survives(self.put(scratch, data[:cut]), self.subject)
                assert found.errors, f"cut at {cut}"

    def test_damage_in_one_place_costs_no_frame_before_it(self) -> None:
        """It costs all of them."""

    @shared
    @given(data=st.data())
    def test_any_values_in_a_manifest_give_only_errors_of_values(self, data: st.DataObject) -> None:
        """Any JSON at any place: too large, negative, of another type."""
        found = json.loads(data.draw(st.sampled_from(self.small)))
        places = list(json_places(found))
        for where, name in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
            numbers = st.sampled_from([-1, 0, 1, 1 << 31, 1 << 63, 1 << 70, 1e308, float("inf"), float("nan")])
            where[name] = data.draw(
                numbers | st.none() | st.booleans() | st.text(max_size=3) | st.just([]) | st.just({})
            )
        try:
            made = parse(json.dumps(found).encode())
        except ValueError:
            return
        assert 0 <= made.size <= LARGEST_NUMBER
        for number in {0, made.count - 1} if made.count else ():
            start, size = made.place(number)
            assert start >= 0
            assert size >= 0


def json_places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a value in JSON: what it is in, and its name there."""
    for name in found:
        yield found, name
        if isinstance(found[name], dict):
            yield from json_places(found[name])
