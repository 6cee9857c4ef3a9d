"""What a format and a store must show. `FormatTests` is the class that the tests of every registered format inherit:

    class TestRecording(FormatTests):
        format = "replay.recording"
        golden = [case.path for case in replay_cases()]
        small = [golden_path("replay", "v2", "find.log").read_bytes()]
        everything = GOLDEN

        def expected(self, path): ...       # what is known of a golden file: rows by table
        def reference(self, data): ...      # what the slow decoder reads of any bytes: rows by table
        def samples(self): ...              # a Hypothesis strategy of whole files

`StoreTests` is the same for a family whose stores can be rewritten:

    class TestStore(StoreTests):
        family = "journal"
        stores = [GOLDEN / "orders"]

Needs pytest and Hypothesis, which no other part of rawlog does.
"""

from __future__ import annotations

from rawlog.testing.damage import Damage
from rawlog.testing.formats import Reading, Recognition, RowList, Tables, Writing, outline, plain
from rawlog.testing.store import StoreTests

__all__ = ["FormatTests", "RowList", "StoreTests", "Tables", "outline", "plain"]


class FormatTests(Reading, Recognition, Writing, Damage):
    """All that a registered format must show; a subclass says which one, and gives its files and its reference."""
