"""What a store must show: `StoreTests`, for a family that rewrites its stores (`Store.rewrites`).

It looks at the verbs from outside, as the command line does: a source, a target, a report. Nothing here knows a format.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rawlog import registry
from rawlog.engines.choice import run
from rawlog.model.errors import (
    AccessError,
    EncodeError,
    OptionError,
    RawlogError,
)
from rawlog.model.finding import Finding, Severity
from rawlog.model.format import Family
from rawlog.model.report import Action, Entry, Report
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.reading.tree import open_tree
from rawlog.testing.damage import WOUNDS, wounded
from rawlog.verbs.cat import read
from rawlog.verbs.repair import RewriteJob
from rawlog.verbs.verify import verify

#: Directory names that a careless program would follow, split, expand or print as they are. All are valid names of directories.
HOSTILE = ("..x", "-rf", "~", "$HOME", "a b", "a\nb", "%2e%2e", "ünï", "*", "-0")
REPAIR = "repair"


@dataclass(slots=True)
class Result:
    """What a verb reported: `losses` are the entries of what was lost, dropped or changed, where they are known."""

    is_whole: bool
    report: Mapping[str, Any]
    losses: list[Entry] = field(default_factory=list)
    remaining: Sequence[Finding] = ()


def rewrite(verb: str, source: Path, target: Path, options: Mapping[str, str], **how: bool) -> Result:
    """Run a verb as the command line does; `how` has `overwrite` and `dry_run`."""
    with RewriteJob(verb, str(target), options, **how) as job:
        report: Report = run(job, open_tree(source))
    losses = [entry for entry in report.all_entries() if entry.is_alteration]
    return Result(report.is_whole, report.as_json(), losses, report.remaining)


def check_class(family: Family) -> None:
    """The class of a family's stores is there, and defines abilities and verbs that rewrite: a method whose name is wrong would be an
    ability that the system silently does not have.
    """
    kind = family.store_class
    assert issubclass(kind, Store)
    assert kind is not Store
    for name in (name for name in vars(kind) if not name.startswith("_") and name != "rewrites"):
        ability = getattr(kind, name)
        if name in kind.rewrites:
            takes_more = kind.rewrites[name].keeps or kind.rewrites[name].aside is not None
            inspect.signature(ability).bind("the store", "a directory", "options", *["more"] * takes_more)
            continue
        assert name in vars(Store), f"{name} is neither an ability of Store nor a verb that rewrites"
        assert kind.can(name)
        if callable(ability):
            taken, expected = (inspect.signature(each).parameters for each in (ability, getattr(Store, name)))
            assert list(taken) == list(expected), name
    assert kind.can("rows_of") == bool(family.folds)
    assert kind.can("takes") or family.host is None
    assert kind.can("system_name") == kind.can("copies")
    assert not (kind.can("settle") and family.is_single)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative path; a file alone has the empty path."""
    if folder.is_file():
        return {"": folder.read_bytes()}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def fingerprint(folder: Path) -> str:
    """A digest of names, kinds, content, permissions and times of everything below a directory."""
    digest = hashlib.blake2b()
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        digest.update(repr((str(path), about.st_mode, about.st_mtime_ns, about.st_size)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def serious(findings: Iterable[Finding]) -> list[str]:
    """The errors and warnings among findings, as text."""
    return [
        f"{finding.code}: {finding.path}: {finding.message}"
        for finding in findings
        if finding.severity is not Severity.INFO
    ]


def is_at(finding: Finding, entry: Entry) -> bool:
    """Whether a finding is at the place of an entry of a report. One on a whole file, or on its header, covers the file."""
    if entry.path is None or finding.path is None:
        return True
    if finding.path != entry.path:
        return False
    if finding.position is None or finding.code.endswith(".header"):
        return True
    if entry.action in (Action.ADDED, Action.LOST) or entry.start is None or entry.stop is None:
        return True  # not bytes of the source: where something was put in, or must have been
    if entry.stop <= entry.start:
        return True
    return finding.position < entry.stop and entry.start < finding.position + max(finding.size or 0, 1)


class StoreTests:
    """All that a family with stores must show; a subclass gives its name and a few small stores that are sound.

    A verb that a store has no options for is run without any. Stores are copied first: golden data is never passed to a verb.
    """

    #: The name of the family.
    family: ClassVar[str]
    #: Directories that hold one store each, in which `verify` finds nothing.
    stores: ClassVar[Sequence[Path]]
    #: What each verb is given; a verb that depends on the time needs its option `now` here.
    options: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    #: Files that a repair may leave out, add or write differently even of a sound store, because they are derived from the data or belong
    #: to a running process: patterns of relative paths, each with the reason in a comment. All other files keep every byte.
    derived: ClassVar[Sequence[str]] = ()
    #: Verbs that change their own result when they are repeated, because the real system does, each with the reason. Records stay the same.
    repeated: ClassVar[Mapping[str, str]] = {}
    #: How often each kind of damage is tried.
    examples: ClassVar[int] = 2

    # Tools --------------------------------------------------------------------------------------------------------------

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that rewrite a store of this family."""
        return tuple(registry.family(self.family).store_class.rewrites)

    @pytest.fixture
    def copies(self, tmp_path: Path) -> list[Path]:
        """A copy of every store, each in a directory of its own, under its own name."""
        copies = []
        for number, store in enumerate(self.stores):
            copies.append(self.copy(store, tmp_path / f"source{number}" / store.name))
        return copies

    def copy(self, store: Path, target: Path) -> Path:
        """A copy of a store; override it to leave out files that only tests know."""
        if store.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(store, target)
        else:
            shutil.copytree(store, target)
        return target

    def rewrite(self, verb: str, source: Path, target: Path, **how: bool) -> Result:
        """Run a verb with the options of this family."""
        return rewrite(verb, source, target, dict(self.options.get(verb, {})), **how)

    def data(self, folder: Path) -> dict[str, bytes]:
        """The files of a store that are not derived."""
        return {
            name: data
            for name, data in contents(folder).items()
            if not any(fnmatch(name, pattern) for pattern in self.derived)
        }

    def runs(self, copies: Sequence[Path], tmp_path: Path) -> Iterator[tuple[str, Path, Path, Result]]:
        """Every verb on every store: the verb, the source, the target and the result."""
        for number, source in enumerate(copies):
            for verb in self.verbs:
                target = tmp_path / f"{verb}{number}" / source.name
                yield verb, source, target, self.rewrite(verb, source, target)

    # Sound stores -------------------------------------------------------------------------------------------------------

    def test_the_class_of_stores_defines_abilities_and_nothing_else(self) -> None:
        check_class(registry.family(self.family))

    def test_verify_finds_nothing_in_golden_stores(self, copies: list[Path]) -> None:
        assert copies, "no stores"
        for source in copies:
            assert not serious(verify(source)), source.name

    def test_every_rewrite_leaves_a_store_that_verifies_clean(self, copies: list[Path], tmp_path: Path) -> None:
        for verb, source, target, result in self.runs(copies, tmp_path):
            assert not serious(verify(target)), f"{verb} {source.name}"
            assert not result.remaining

    def test_rewriting_again_changes_nothing(self, copies: list[Path], tmp_path: Path) -> None:
        for verb, source, target, _ in self.runs(copies, tmp_path):
            again = tmp_path / f"again-{verb}-{target.parent.name}" / source.name
            result = self.rewrite(verb, target, again)
            assert result.is_whole, f"{verb} {source.name}: {result.report}"
            if verb in self.repeated:
                assert read(again).equals(read(target)), f"{verb} {source.name}, again: other records"
            else:
                _same(contents(again), contents(target), f"{verb} {source.name}, again")

    def test_repair_of_a_clean_store_keeps_every_byte(self, copies: list[Path], tmp_path: Path) -> None:
        for number, source in enumerate(copies if REPAIR in self.verbs else ()):
            target = tmp_path / f"kept{number}" / source.name
            result = self.rewrite(REPAIR, source, target)
            assert result.is_whole, result.report
            assert not result.losses
            _same(self.data(target), self.data(source), source.name)

    def test_sources_are_not_changed(self, copies: list[Path], tmp_path: Path) -> None:
        before = [fingerprint(source) for source in copies]
        for _ in self.runs(copies, tmp_path):
            assert [fingerprint(source) for source in copies] == before

    def test_a_dry_run_writes_nothing_and_reports_the_same(self, copies: list[Path], tmp_path: Path) -> None:
        for number, source in enumerate(copies if REPAIR in self.verbs else ()):
            target = tmp_path / f"dry{number}"
            before = sorted(tmp_path.rglob("*"))
            dry = self.rewrite(REPAIR, source, target, dry_run=True)
            assert sorted(tmp_path.rglob("*")) == before
            real = self.rewrite(REPAIR, source, target)
            assert _comparable(dry) == _comparable(real)

    # Where results go ---------------------------------------------------------------------------------------------------

    def test_a_target_that_is_or_contains_or_lies_inside_the_source_is_refused(self, copies: list[Path]) -> None:
        source = copies[0]
        link = source.parent / "link"
        link.symlink_to(source)
        before = fingerprint(source.parent)
        for verb in self.verbs:
            for target in (source, source.parent, source / "inside", link, link / "inside"):
                for overwrite in (False, True):
                    with pytest.raises((OptionError, AccessError)):
                        self.rewrite(verb, source, target, overwrite=overwrite)
                    assert fingerprint(source.parent) == before, f"{verb} to {target}"

    def test_an_existing_target_is_replaced_only_if_asked(self, copies: list[Path], tmp_path: Path) -> None:
        source = copies[0]
        for verb in self.verbs:
            parent = tmp_path / f"existing-{verb}"
            fresh, target = self._taken(verb, source, parent)
            before = fingerprint(parent)
            with pytest.raises(AccessError):
                self.rewrite(verb, source, target)
            assert fingerprint(parent) == before
            self.rewrite(verb, source, target, overwrite=True)
            _same(contents(target), contents(fresh), verb)
            assert len(list(parent.iterdir())) == 2, "something was left next to the target"

    def _taken(self, verb: str, source: Path, parent: Path) -> tuple[Path, Path]:
        """A result of the verb, and a target of the same kind that is taken."""
        fresh, target = parent / "fresh", parent / "target"
        self.rewrite(verb, source, fresh)
        if fresh.is_file():
            target.write_bytes(b"mine")
        else:
            target.mkdir()
            (target / "mine").write_bytes(b"mine")
        return fresh, target

    def test_hostile_names_never_leave_the_target(self, tmp_path: Path) -> None:
        """A directory may have any name; what is written stays below the target, or the verb refuses."""
        store = self.stores[0]
        for number, name in enumerate(HOSTILE):
            place = tmp_path / f"hostile{number}"
            self.copy(store, place / "source" / name / store.name)
            self.copy(store, place / "source" / f"{name}{name}" / store.name)
            for verb in self.verbs:
                before = fingerprint(place / "source")
                here = {path for path in tmp_path.iterdir() if path != place}
                try:
                    self.rewrite(verb, place / "source", place / "target")
                except (EncodeError, OptionError, AccessError):
                    assert not os.path.lexists(place / "target")
                assert fingerprint(place / "source") == before
                assert {path for path in tmp_path.iterdir() if path != place} == here
                assert {path.name for path in place.iterdir()} <= {"source", "target"}
                if (place / "target").is_dir():
                    shutil.rmtree(place / "target")
                (place / "target").unlink(missing_ok=True)

    # Damage -------------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", WOUNDS)
    def test_repair_of_a_damaged_store_acts_on_what_verify_finds(self, kind: str, tmp_path: Path) -> None:
        """Every loss is at the place of a finding; without a finding nothing is lost; the result verifies clean, or says what remains."""
        for number in range(self.examples if REPAIR in self.verbs else 0):
            draw = random.Random(f"{kind} {number}")
            store = draw.choice(self.stores)
            source = self.copy(store, tmp_path / f"damaged{number}" / store.name)
            path = self.damaged_file(draw, source)
            path.write_bytes(wounded(draw, path.read_bytes(), kind))
            self._check_repair(source, tmp_path / f"repaired{number}" / store.name, f"{kind} {number}: {path}")

    def damaged_file(self, draw: random.Random, source: Path) -> Path:
        """Which file of a store is damaged: one that holds records, or any that is read."""
        able = registry.formats_with(RECORDS)
        files = [file for file in open_tree(source) if file.system is not None and file.size]
        data = [file for file in files if file.format in able]
        return Path(draw.choice(data if data and draw.random() < 0.7 else files).path)

    def is_explained(self, entry: Entry, found: Sequence[Finding]) -> bool:
        """Whether a finding says why an entry is a loss; a family whose files decide about one another says more."""
        return any(is_at(finding, entry) for finding in found)

    def _check_repair(self, source: Path, target: Path, what: str) -> None:
        findings = list(verify(source))
        before = fingerprint(source)
        try:
            result = self.rewrite(REPAIR, source, target)
        except RawlogError:
            assert serious(findings), f"{what}: refused, but verify finds nothing"
            assert not os.path.lexists(target)
            return
        assert fingerprint(source) == before, what
        assert result.remaining or not serious(verify(target)), f"{what}: the result is not clean, and not reported"
        for entry in result.losses:
            places = [f"{finding.code} {finding.path} {finding.position} {finding.size}" for finding in findings]
            assert self.is_explained(entry, findings), f"{what}: {entry}: verify finds nothing there: {places}"
        if not findings:
            _same(self.data(target), self.data(source), what)


def _comparable(result: Result) -> dict[str, Any]:
    """What a dry run and a real one must have in common."""

    def plain(report: Mapping[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in report.items() if name not in ("target", "dry_run", "remaining")}
        return fields | {"parts": {name: plain(part) for name, part in report.get("parts", {}).items()}}

    return plain(result.report)


def _same(files: Mapping[str, bytes], expected: Mapping[str, bytes], what: str) -> None:
    """The same files with the same bytes."""
    assert sorted(set(expected) - set(files)) == [], f"{what}: files are missing"
    assert sorted(set(files) - set(expected)) == [], f"{what}: files were added"
    for name, data in expected.items():
        if files[name] != data:
            at = next((i for i, (a, b) in enumerate(zip(files[name], data, strict=False)) if a != b), -1)
            raise AssertionError(
                f"{what}: {name}: {len(files[name])} and {len(data)} bytes, first difference at byte {at}"
            )
