"""Stores damaged at random and repaired: one suite that every family inherits.

`RAWLOG_CASES` says how many cases are tried (200 unless set; `make deep` tries 2,000), `RAWLOG_CASE` names a single one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest

import rawlog
from rawlog.model.finding import Severity
from rawlog.model.report import Entry, Report
from tests.data.rewriting import rewritten
from tests.data.trees import contents

CASES = int(os.environ.get("RAWLOG_CASES", "200"))
ONLY = os.environ.get("RAWLOG_CASE")
SHARES = 10
#: A place in memory where there is one: every file is synced, and that takes longer than all else.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Damage:
    """A damaged store: where it is, what was done to it, and what its family knows of it."""

    source: Path
    story: str
    truth: Any = None


@dataclass
class Repair:
    """What repair made of a damaged store."""

    source: Path
    target: Path
    report: Report

    @cached_property
    def findings(self) -> rawlog.Findings:
        """What verification finds in the damaged store."""
        return rawlog.verify(self.source)


class RandomRepair:
    """Repair keeps what is sound, reports what is lost, acts on what verification finds, and has nothing to do the second time."""

    #: The remaining findings of every N-th case are compared with those of verification.
    verify_every = 1
    options: ClassVar[dict[str, str]] = {}

    def damage(self, number: int, folder: Path) -> Damage | None:
        """Write a damaged store below a directory; None if nothing of it was left."""
        raise NotImplementedError

    def judge(self, damage: Damage, repair: Repair) -> None:
        """Assert that the result has what the truth says must be left, and that the report names the rest."""
        raise NotImplementedError

    def is_found(self, entry: Entry, repair: Repair) -> bool:
        """Whether verification finds something where repair lost, dropped or changed something."""
        raise NotImplementedError

    def repair(self, source: Path, target: Path) -> Report:
        return rewritten("repair", source, target, **self.options)

    def compared(self, folder: Path) -> dict[str, bytes]:
        """The files that a second repair leaves as they are."""
        return contents(folder)

    def is_settled(self, second: Report, first: Report) -> bool:
        """Whether a second repair had nothing to do."""
        return second.is_whole

    @pytest.fixture
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="rawlog-repair-", dir=MEMORY) as folder:
            yield Path(folder)

    @pytest.mark.parametrize("share", range(SHARES) if ONLY is None else [0])
    def test_what_is_sound_survives_and_what_is_lost_is_reported(self, share: int, scratch: Path) -> None:
        for number in range(share, CASES, SHARES) if ONLY is None else [int(ONLY)]:
            self.check(number, scratch / str(number))
            shutil.rmtree(scratch / str(number), ignore_errors=True)

    def check(self, number: int, folder: Path) -> None:
        """Damage a store, repair it twice, and judge the results."""
        folder.mkdir()
        damage = self.damage(number, folder)
        if damage is None:
            return
        try:
            self._check(number, damage, folder)
        except Exception as error:
            raise AssertionError(f"case {number}: {damage.story}: {error}") from error

    def _check(self, number: int, damage: Damage, folder: Path) -> None:
        source, once, twice = damage.source, *(folder / name / damage.source.name for name in ("once", "twice"))
        before = contents(source)
        report = self.repair(source, once)
        assert contents(source) == before, "the source changed"
        repair = Repair(source, once, report)
        unfounded = [
            entry.line() for entry in report.all_entries() if entry.is_alteration and not self.is_found(entry, repair)
        ]
        assert not unfounded, f"verify finds nothing there: {unfounded}"
        if number % self.verify_every == 0:
            codes = sorted(one.code for one in rawlog.verify(once) if one.severity is not Severity.INFO)
            assert codes == sorted(one.code for one in report.remaining), "what remains is not what verify finds"
        self.judge(damage, repair)
        second = self.repair(once, twice)
        assert self.compared(twice) == self.compared(once), "a second repair changes the result"
        assert self.is_settled(second, report), second.lines()
