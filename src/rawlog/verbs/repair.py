"""`repair`, `rebuild` and `compact`: stores written again. `erase` is the same job with a choice of records."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

from rawlog import registry
from rawlog.io.output import Folder, Output, descendant, unwritable
from rawlog.io.storage import is_remote, local_path
from rawlog.model.errors import (
    CorruptError,
    ExistsError,
    OptionError,
    UnknownFormatError,
    unknown,
)
from rawlog.model.finding import Finding, Findings, Severity
from rawlog.model.format import UnknownFile
from rawlog.model.job import (
    Job,
    Split,
    SplitResult,
    Stage,
    unreadable,
)
from rawlog.model.report import Action, Report
from rawlog.model.store import Rewrite, Store, stores_of_files
from rawlog.model.table import RECORDS
from rawlog.model.text import counted
from rawlog.model.verb import Kind, Option, verb
from rawlog.reading.options import Note, Path, Time, Topics
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.options import (
    Force,
    Page,
    Running,
    SystemOptions,
    check_page,
    instead,
    open_sources,
    option_texts,
    write_page,
)

if TYPE_CHECKING:
    from rawlog.model.format import Family, File, Keep
    from rawlog.reading.inspect import RuleChoice


@verb(
    group="check and repair",
    examples=(
        "rawlog repair /var/kafka-logs repaired/",
        "rawlog repair orders-0/ repaired/ --dry-run --json",
        "rawlog repair orders-0/ repaired/ --quarantine cut/",
    ),
    more="Exit codes: 0 done, nothing lost; 1 something was dropped, corrected or left out, or findings remain; 2 wrong usage; "
    "3 cannot be read or written.",
    doing="repairing",
)
def repair(
    source: Annotated[Path, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    policy: Annotated[
        str | None,
        Option(
            "salvage: keep all sound data (default). broker (RocketMQ: cut): keep what the real system would keep. strict: refuse damage.",
            metavar="NAME",
        ),
    ] = None,
    dry_run: Annotated[bool, "Only report what would be kept, cut and rebuilt."] = False,
    quarantine: Annotated[
        Path | None,
        Option("Kafka: write the cut bytes here, and the records in them that can still be read.", metavar="DIR"),
    ] = None,
    move: Annotated[bool, "RocketMQ: close holes, so that later messages change their physical offsets."] = False,
    html: Page = None,
    option: SystemOptions = None,
    force: Force = False,
    **running: Unpack[Running],
) -> Report:
    """Write a repaired copy of the damaged files of one broker.

    `target` gets all sound data of `source`, and the real system opens it. Indexes and other derived files are rebuilt. Every loss is
    reported with its place. `source` is never changed; `target` must not exist yet. For replicas on several disks use `rawlog rescue`; for
    a new broker, or a moment in the past, `rawlog restore`.

    Returns a Report. AccessError if `target` exists and not `force`; OptionError if it is in the source.

    >>> import rawlog
    >>> report = rawlog.repair("samples/kafka/transactions-0", "out/repaired", dry_run=True)
    """
    options = option_texts(
        option,
        policy=policy,
        quarantine=None if quarantine is None else os.fspath(quarantine),
        move="true" if move else None,
    )
    check_page(html, [os.fspath(source)])
    report = rewrite("repair", source, target, options, force, None, running, dry_run=dry_run)
    if html is not None:
        write_report(html, report, [os.fspath(source)])
    return report


@verb(
    group="check and repair",
    examples=(
        "rawlog rebuild /var/kafka-logs/orders-0 rebuilt/",
        "rawlog rebuild /var/rocketmq/store rebuilt/ --json",
    ),
    more="Exit codes: 0 done; 1 damage found; 2 wrong usage; 3 cannot be read or written.",
    doing="rebuilding",
)
def rebuild(
    source: Annotated[Path, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    option: SystemOptions = None,
    force: Force = False,
    **running: Unpack[Running],
) -> Report:
    """Write a copy with its derived files rebuilt.

    Derived files are indexes, producer snapshots and epochs; consume queues and key index; index segments and bloom filters. `source` is
    never changed; `target` must not exist yet. Damaged data is for `rawlog repair`.

    Returns a Report. Damage raises DataError. Other errors as `rawlog.repair`.

    >>> import rawlog
    >>> report = rawlog.rebuild("samples/kafka/transactions-0", "out/rebuilt")
    """
    return rewrite("rebuild", source, target, option_texts(option), force, None, running)


@verb(
    group="move",
    examples=(
        "rawlog compact /var/kafka-logs/customers-0 compacted/",
        "rawlog compact /var/kafka-logs compacted/ --topic 'customers*' --option delete.retention.ms=0 --roll",
        "rawlog compact ambry-store/ compacted/ --now 2024-09-11T09:00:00Z",
    ),
    more="Exit codes: 0 done; 1 records were lost, or files left out; 2 wrong usage; 3 cannot be read or written.",
    doing="compacting",
)
def compact(
    source: Annotated[Path, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    topic: Topics = None,
    now: Annotated[
        Time | None,
        Option("Compare ages with this time: ISO 8601 or epoch milliseconds.  [default: now]", metavar="TIME"),
    ] = None,
    memory: Annotated[
        int | None,
        Option(
            "Kafka: memory for the map of keys; less memory takes more rounds.  [default: 128M]",
            kind=Kind.SIZE,
            metavar="SIZE",
        ),
    ] = None,
    roll: Annotated[bool, "Kafka: compact the active segment too, as after a roll."] = False,
    option: SystemOptions = None,
    force: Force = False,
    note: Note | None = None,
    **running: Unpack[Running],
) -> Report:
    """Write a compacted copy, as the real system would make it.

    `target` has `source` without what the real system's own compaction would drop. `source` is never changed. `option` gives a topic's
    settings under Kafka's names: delete.retention.ms, min.compaction.lag.ms, segment.bytes and others.

    Returns a Report. Errors as `rawlog.repair`.

    >>> import rawlog
    >>> report = rawlog.compact("samples/kafka/transactions-0", "out/compacted", option={"delete.retention.ms": 0})
    """
    topics = (topic,) if isinstance(topic, str) else tuple(topic or ())
    options = option_texts(
        option,
        topic=",".join(topics) if topics else None,
        now=now.isoformat() if isinstance(now, datetime) else now,
        memory=memory,
        roll="true" if roll else None,
    )
    return rewrite("compact", source, target, options, force, note, running)


def rewrite(
    verb: str,
    source: Path,
    target: Path,
    options: Mapping[str, str],
    force: bool,
    note: Note | None,
    running: Running,
    *,
    dry_run: bool = False,
) -> Report:
    """Rewrite the stores at `source` with the families that know the verb: `repair`, `rebuild`, `compact` or `erase`."""
    from rawlog.reading.rows import check_names

    engine, [tree] = open_sources([source], running)
    if "topic" in options:
        check_names(tree, RECORDS, Selection(topics=tuple(options["topic"].split(","))), note)
    path = os.fspath(target)
    with RewriteJob(verb, path, options, overwrite=force, dry_run=dry_run, at_once=engine.at_once) as job:
        return engine.run(job, tree, running.get("progress"))


def write_report(html: Path, report: Report, sources: Iterable[str]) -> None:
    """Write the page of a report."""
    from rawlog.pages.results import report_page
    from rawlog.verbs.report import causes

    write_page(html, report_page(report, causes(report.remaining, [report.target])), sources)


# The job --------------------------------------------------------------------------------------------------------------------


#: Verbs whose result is verified, so that what is still wrong in it is reported; and the one that refuses damage.
VERIFIED, REBUILD = frozenset({"repair", "rebuild", "compact", "erase"}), "rebuild"


@dataclass(frozen=True, slots=True)
class StoreSplit:
    """One store, its family, and where it goes below the target (empty: it is the target)."""

    family: str
    store: Store
    place: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RewriteResult(SplitResult):
    """A rewritten store: its report, its directory, and the directory of the data that was set aside."""

    report: Report
    folder: str
    aside: str | None = None
    #: What verification finds in the files of the store, each alone.
    remaining: tuple[Finding, ...] = ()
    #: The same for its files together: to be asked again where the files around the store are in place.
    in_groups: tuple[Finding, ...] = ()


class RewriteJob(Job[RewriteResult, Report]):
    """Rewrite stores with the families that know the verb. Use as a context manager: leaving it removes what a failed run left.

    `at_once` is how many stores the engine rewrites at once on one machine. With `dry_run` nothing appears anywhere.
    """

    #: Whether files that no format knows are copied where the family lets them; else they are left out and named.
    copies_unknown = True

    def __init__(
        self,
        verb: str,
        target: str,
        options: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
        at_once: int = 1,
    ) -> None:
        """OptionError for a target that is not local."""
        if is_remote(target):
            raise OptionError(f"{target}: {verb} writes a local directory")
        self.verb, self.options = verb, dict(options or {})
        self.named, self.overwrite, self.dry_run, self.at_once = target, overwrite, dry_run, at_once
        self.target = LocalPath(local_path(target)).absolute()
        self.output = Output(target, overwrite=overwrite)
        #: What is cut has a stage of its own: it may be on another disk.
        self.aside: Output | None = None
        self._splits: list[StoreSplit] = []
        #: Files that no format knows in the directories around stores, by their paths there.
        self._around: list[tuple[str, File]] = []
        self._report = Report(verb=verb, target=target, is_dry_run=dry_run)

    def __getstate__(self) -> dict[str, Any]:
        # The plan stays on the driver: a split carries its own store.
        return {**self.__dict__, "_splits": [], "_around": [], "_report": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for output in (self.output, self.aside):
            if output is not None:
                output.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each store. UnknownFormatError if there is nothing to rewrite, OptionError for an option that no family
        understands, AccessError if the target exists.
        """
        systems = {file.system for file in tree.files}
        present = [family for family in registry.families() if any(map(family.looks_at, systems))]
        shares = families_of([family for family in present if self.verb in family.store_class.rewrites], tree.files)
        if not shares:
            able = [family for family in registry.families() if self.verb in family.store_class.rewrites]
            names = ", ".join(family.title for family in able)
            raise instead(
                UnknownFormatError(
                    f"{', '.join(tree.roots)}: nothing here to {self.verb}; these systems can be: {names}"
                ),
                tree,
            )
        self._check_options([family for family, _ in shares])
        stores = [(family, *self._stores(family, files, tree.roots)) for family, files in shares]
        self._report.source = ", ".join(tree.roots)
        self._report.left_out = [file.path for file in tree.files if _is_stray(file, tree.files)]
        self._report.left_out += _in_no_store(tree.files, [store for _, members, _ in stores for store in members])
        self._assign_unknown(stores, tree)
        self._report.not_loaded = _not_loaded(tree.files, [store for _, members, _ in stores for store in members])
        self._report.entries += unreadable(tree)
        for group in _without_data(tree.files, [store for _, members, _ in stores for store in members]):
            self._report.add(Action.LOST, "no file with data is here; what else there is, is left out", group)
        count = sum(len(members) for _, members, _ in stores)
        alone = count == 1 and not any(
            self.has_surroundings(family, members, tree.roots) for family, members, _ in stores
        )
        self._splits = [
            StoreSplit(family.name, store, "" if alone else _safe(store.name), options)
            for family, members, options in stores
            for store in members
        ]
        self._place_aside([family for family, _, _ in stores])
        self.output.refuse(tree.sources)
        if self.aside is not None:
            self.aside.refuse((*tree.sources, self.named))
        if not self.dry_run:
            self._prepare()
        return [Split(number, split.store.size, split) for number, split in enumerate(self._splits)]

    def _check_options(self, families: Sequence[Family]) -> None:
        names = {name for family in families for name in family.store_class.rewrites[self.verb].options}
        for name in self.options:
            if name not in names:
                raise unknown(
                    f"option of {' and '.join(family.name for family in families)} for {self.verb}", name, names
                )

    def _stores(
        self, family: Family, files: Sequence[File], roots: Sequence[str]
    ) -> tuple[Sequence[Store], Mapping[str, str]]:
        """A family's stores, and the options that it understands: all stores go by the same clock."""
        rewrite = family.store_class.rewrites[self.verb]
        options = {name: value for name, value in self.options.items() if name in rewrite.options}
        if "now" in rewrite.options:
            options.setdefault("now", str(int(time.time() * 1000)))
        kind = family.store_class
        if family.is_single:
            return _distinct([kind.of(store) for store in stores_of_files(files, roots)]), options
        stores = [kind.of(store) for store in kind.stores(self.verb, files, options)]
        if "at_once" in rewrite.options:
            options.setdefault("at_once", str(max(1, min(self.at_once, len(stores)))))
        return stores, options

    def has_surroundings(self, family: Family, stores: Sequence[Store], roots: Sequence[str]) -> bool:
        """Whether stores are in a directory that was named and has files of its own: then they keep their place in it."""
        if family.is_single:
            return not any(file.path == root.rstrip("/") for store in stores for file in store for root in roots)
        groups = {file.place.group for store in stores for file in store if file.place.topic is not None}
        return family.store_class.has_surroundings and any(
            group is not None and group.startswith(f"{root.rstrip('/')}/") for group in groups for root in roots
        )

    def _assign_unknown(self, stores: Sequence[tuple[Family, Sequence[Store], Mapping[str, str]]], tree: Tree) -> None:
        """Give each store the files in its directory that no format knows. Those around stores are kept for `commit`, and those next to
        stores that are single files are left out.
        """
        unknown = UnknownFiles(
            tree.files,
            [store.path for _, members, _ in stores for store in members],
            [
                store.path.rpartition("/")[0]
                for family, members, _ in stores
                for store in members
                if family.store_class.has_surroundings
            ],
        )
        self._around = [(path, file) for file, path, in_store in unknown if not in_store]
        if any(family.is_single for family, _, _ in stores):
            self._report.left_out += [file.path for file in unknown.elsewhere]
        elif unknown.elsewhere:
            self._report.notes.append(
                f"{counted(len(unknown.elsewhere), 'unknown file')} outside of all stores: not copied, such as "
                f"{unknown.elsewhere[0].path}"
            )
        for _, members, _ in stores:
            for store in members:
                store.unknown = tuple(unknown.inside[store.path])

    def _place_aside(self, families: Sequence[Family]) -> None:
        options = [family.store_class.rewrites[self.verb].aside for family in families]
        paths = [self.options[option] for option in options if option is not None and option in self.options]
        self.aside = Output(paths[0]) if paths and not self.dry_run else None

    def _prepare(self) -> None:
        """Refuse places that are taken, and open the stages."""
        if not (self.overwrite and self._is_one_file()):
            self.output.check_directory()
        self.output.check()
        if self.aside is not None:
            places = [self.aside.path]
            places += [f"{self.aside.path}/{split.store.name}" for split in self._splits if len(self._splits) > 1]
            for path in map(LocalPath, places if len(places) == 1 else places[1:]):
                if path.exists() and (not path.is_dir() or any(path.iterdir())):
                    raise ExistsError(f"{path}: exists already and is not empty")
        self.stage = self.output.open()
        if self.aside is not None:
            self.aside.open()

    def _is_one_file(self) -> bool:
        """Whether the target itself is a file."""
        [*others, only] = self._splits
        return not others and not only.place and registry.family(only.family).is_single

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> RewriteResult:
        """Rewrite one store, in a directory of this attempt's own."""
        content: StoreSplit = split.content
        rewrite = _rewrite_of(content.family, self.verb)
        final = f"{self.named}/{content.place}" if content.place else self.named
        path = LocalPath(stage.path) / stage.name / self.target.name / content.place
        folder = Folder(path, named=final, dry_run=self.dry_run)
        if registry.family(content.family).is_single:
            folder = Folder(
                LocalPath(stage.path) / stage.name, named=final.rpartition("/")[0] or ".", dry_run=self.dry_run
            )
            path = folder.path / content.store.name.rpartition("/")[2]
        aside = None
        if self.aside is not None:
            aside = Folder(LocalPath(str(self.aside.stage)) / stage.name, named=self.aside.named).make()
        arguments: tuple[Any, ...] = (folder.make(), content.options)
        arguments += (aside,) if rewrite.aside is not None else (self.keep(content),) if rewrite.keeps else ()
        try:
            report: Report = getattr(content.store, self.verb)(*arguments)
        except OSError as error:
            problem = unwritable(final, error)
            problem.args = (str(problem).replace(str(path), final),)
            raise problem from None
        report.verb, report.target, report.is_dry_run = self.verb, final, self.dry_run
        inside = [(file.path[len(content.store.path) + 1 :], file) for file in content.store.unknown]
        self.carry_unknown(content.family, inside, folder, report, in_store=True)
        alone, together = self._look(content, path, final)
        stage.advance(split.size)
        return RewriteResult(
            split.number, report, str(path), None if aside is None else str(aside.path), alone, together
        )

    def keep(self, split: StoreSplit) -> Keep | None:
        """Which records of a store stay; None: all of them."""
        return None

    def carry_unknown(
        self, family: str, files: Sequence[tuple[str, File]], folder: Folder, report: Report, *, in_store: bool
    ) -> None:
        """Copy files that no format knows to the same place below `folder`, or report that they are left out."""
        copied, remade = [], []
        named = named_paths(report)
        for path, file in files:
            is_taken = os.path.lexists(folder.path / path)
            if file.path in named or (is_taken and in_store):  # the family has decided on it
                continue
            fate = fate_of(registry.family(family), path, in_store=in_store)
            if fate is UnknownFile.REMAKE:
                remade.append(file.path)
            elif fate is UnknownFile.LEAVE or is_taken or file.problem is not None or not self.copies_unknown:
                report.left_out.append(file.path)
            else:
                folder.copy(file.path, path)
                copied.append(file.path)
                if in_store and "files" in report.facts:
                    report.facts["files"] = sorted([*report.facts["files"], path])
        report.notes += _path_notes(copied, "copied unchanged: rawlog does not know what it is")
        report.notes += _path_notes(remade, "not copied: the system creates it again")

    def _look(self, split: StoreSplit, path: LocalPath, final: str) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """What verification finds in what was written, or, in a dry run, what would stay in the source: in each file alone, and in
        groups of files.
        """
        from rawlog.reading.inspect import RuleChoice, inspect_files, inspect_group

        written = path.exists()
        chosen = RuleChoice() if self.verb in VERIFIED and written else self._unrepaired_rules(split.family)
        if chosen is None:
            return (), ()
        tree = open_tree(str(path)) if written else Tree((), split.store.files)
        alone = inspect_files(tree, chosen)
        together = [finding for group in tree.groups for finding in inspect_group(group, chosen)]
        return _serious(alone, str(path), final), _serious(together, str(path), final)

    def _unrepaired_rules(self, family: str) -> RuleChoice | None:
        """The rules for what a family's rewrite leaves as it is; None if there are none."""
        from rawlog.reading.inspect import RuleChoice

        codes = _rewrite_of(family, self.verb).unrepaired
        return RuleChoice(only=codes) if codes else None

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[RewriteResult]) -> Report:
        """Put the stores together and give the whole its name. CorruptError, with nothing written, if `rebuild` met damage."""
        pairs = [(self._splits[result.number], result) for result in results]
        if self.dry_run:
            report = self._join_reports(pairs, Folder(self.target, named=self.named, dry_run=True))
            report.remaining += self._findings_left(pairs)
            return report
        try:
            whole = self._join_stores(pairs)
            report = self._join_reports(pairs, Folder(whole, named=self.named))
            self._refuse_damage(report)
            self._verify(report, pairs, whole)
            self._put_aside(pairs)
            self.output.put(whole)
        except OSError as error:
            raise self.output.unwritable(error) from None
        return report

    def _refuse_damage(self, report: Report) -> None:
        """`rebuild` derives files of sound data: data that is gone or must be corrected is for `repair`."""
        for entry in report.all_entries() if self.verb == REBUILD else ():
            if entry.is_loss and entry.action is not Action.DROPPED:
                raise CorruptError(f"{entry.line()}; `rawlog repair` handles damage", path=self._report.source)

    def _join_stores(self, pairs: Sequence[tuple[StoreSplit, RewriteResult]]) -> LocalPath:
        """Put the stores into the directory that becomes the target."""
        if len(pairs) == 1 and not pairs[0][0].place:
            return LocalPath(pairs[0][1].folder)
        whole = Folder(LocalPath(str(self.stage)) / "whole", named=self.named).make()
        for split, result in pairs:
            if os.path.exists(result.folder):  # it was moved if this is not the first try
                whole.take(result.folder, split.place)
        return whole.path

    def _join_reports(self, pairs: Sequence[tuple[StoreSplit, RewriteResult]], around: Folder) -> Report:
        """Join the reports on stores to one for each family, and these to one."""
        total = self._report
        if len(pairs) == 1 and not pairs[0][0].place:
            single = pairs[0][1].report
            return replace(
                single,
                source=total.source,
                entries=[*total.entries, *single.entries],
                left_out=[*total.left_out, *single.left_out],
                not_loaded=total.not_loaded,
                notes=[*total.notes, *single.notes],
            )
        reports: dict[str, Report] = {}
        for name in dict.fromkeys(split.family for split, _ in pairs):
            stores = [split.store for split, _ in pairs if split.family == name]
            parts = [result.report for split, result in pairs if split.family == name]
            reports[name] = self.join_family(name, stores, parts, around)
        total.unit = pairs[0][0].store.unit
        for report in reports.values():
            total.parts |= report.parts
            total.entries += [
                entry for entry in report.entries if entry not in total.entries
            ]  # two may be in one directory
            total.notes += report.notes
            total.facts |= report.facts
            for name, number in report.counts.items():
                total.count(name, number)
        if self._around:
            self.carry_unknown(next(iter(reports)), self._around, around, total, in_store=False)
        return total

    def join_family(self, family: str, stores: Sequence[Store], reports: Sequence[Report], around: Folder) -> Report:
        """Join the reports on the stores of a family, and write the files around the stores."""
        return registry.family(family).store_class.join(self.verb, stores, reports, around)

    def _verify(self, report: Report, pairs: Sequence[tuple[StoreSplit, RewriteResult]], whole: LocalPath) -> None:
        """Report what is wrong with the result: in the files of each store, which its rewrite looked at; in those around them; and in all
        together; and what the system would do when it starts. The files of a store are compared with one another again only where that
        found something: files around the store may explain it.
        """
        from rawlog.reading.inspect import inspect_file, inspect_group, inspect_tree

        if self.verb not in VERIFIED:
            return
        tree = open_tree(str(whole))
        remaining = [finding for _, result in pairs for finding in result.remaining]
        stores = {whole / split.place for split, _ in pairs}
        again = {whole / split.place for split, result in pairs if result.in_groups}
        later, names = Findings(), (str(whole), self.named.rstrip("/"))
        for file in tree:
            if _store_of(file.path, stores) is None:
                later.add(inspect_file(file))
        for group in tree.groups:
            store = _store_of(str(group[0].place.group), stores)
            if store is None or store in again:
                later.add(inspect_group(group))
        later.add(inspect_tree(tree))
        report.remaining += [*remaining, *_serious(later, *names)]
        startups = [startup.with_predictions(later.predictions).below(*names) for startup in later.startups]
        if startups:
            report.facts["startup"] = [startup.as_json() for startup in startups]
            report.notes += [text for startup in startups for text in startup.lines()]

    def _findings_left(self, pairs: Sequence[tuple[StoreSplit, RewriteResult]]) -> list[Finding]:
        """What is wrong with the source and would not be changed."""
        from rawlog.reading.inspect import inspect_tree

        remaining = [finding for _, result in pairs for finding in (*result.remaining, *result.in_groups)]
        for name in dict.fromkeys(split.family for split, _ in pairs):
            chosen = self._unrepaired_rules(name)
            if chosen is not None:
                files = tuple(file for split, _ in pairs if split.family == name for file in split.store)
                remaining += _serious(inspect_tree(Tree((), files), chosen))
        return remaining

    def _put_aside(self, pairs: Sequence[tuple[StoreSplit, RewriteResult]]) -> None:
        """What was cut, under the name of its store if there are several."""
        cuts = [
            (split, result.aside) for split, result in pairs if result.aside is not None and os.path.isdir(result.aside)
        ]
        if self.aside is None or not cuts:
            return
        if len(self._splits) == 1:
            self.aside.put(str(cuts[0][1]))
            return
        folder = Folder(self.aside.new(), named=self.aside.named)
        for split, path in cuts:
            folder.take(str(path), split.store.name)
        self.aside.add(folder.path)


def families_of(able: Sequence[Family], files: Sequence[File]) -> list[tuple[Family, list[File]]]:
    """Which family rewrites which files. A family that looks into directories of another has those for itself: a metadata log is an
    ordinary log, but must not be repaired as one. OptionError for files of several systems.
    """
    claimed: dict[str | None, str] = {}
    for family in able:
        for file in family.files_for(None, files):
            if file.system != family.name or (family.host is not None and file.place.topic is not None):
                claimed[file.place.group] = family.name
    shares = []
    for family in able:
        claims = family.name in claimed.values()
        members = [
            file
            for file in files
            if claimed.get(file.place.group) == family.name
            or (file.system == family.name and not claims and file.place.group not in claimed)
        ]
        if members := [file for file in members if not _is_stray(file, files)]:
            shares.append((family, members, claims))
    if len(shares) > 1:  # files that only lie next to the data of another system are not rewritten alone
        shares = [
            share
            for share in shares
            if not share[0].store_class.can("takes") or any(file.place.topic for file in share[1])
        ]
    if sum(not claims for _, _, claims in shares) > 1:
        names = " and ".join(family.name for family, _, _ in shares)
        raise OptionError(f"files of {names} are here; name the directory of one of them")
    return [(family, members) for family, members, _ in shares]


def _is_stray(file: File, files: Sequence[File]) -> bool:
    """Whether a file that is known by its first bytes alone lies among the files of a store: there its name is wrong."""
    return (
        file.format is not None
        and file.place.group is None
        and any(other.place.group and file.path.startswith(f"{other.place.group}/") for other in files)
    )


class UnknownFiles:
    """The files that no format knows: inside of stores, in the directories around stores, and elsewhere, each at the deepest of these."""

    def __init__(self, files: Iterable[File], stores: Iterable[str], around: Iterable[str]) -> None:
        self.inside: dict[str, list[File]] = {path: [] for path in stores}
        self.around: dict[str, list[File]] = {path: [] for path in around if path not in self.inside}
        self.elsewhere: list[File] = []
        for file in files:
            if file.format is None:
                self._home(file.path).append(file)

    def __iter__(self) -> Iterator[tuple[File, str, bool]]:
        """Each file of a store or around stores, its path below that directory, and whether that is a store's."""
        for homes, in_store in ((self.inside, True), (self.around, False)):
            for base, files in homes.items():
                yield from ((file, file.path[len(base) + 1 :], in_store) for file in files)

    def _home(self, path: str) -> list[File]:
        while "/" in path:
            path = path.rpartition("/")[0]
            for homes in (self.inside, self.around):
                if path in homes:
                    return homes[path]
        return self.elsewhere


def fate_of(family: Family, path: str, *, in_store: bool) -> UnknownFile:
    """What a family says of a file that no format knows, by its path below the directory of a store, or the one around stores."""
    return family.store_class.unknown_file(path, in_store)


def named_paths(report: Report) -> set[str | None]:
    """The paths that a report says something of."""
    return {*(entry.path for entry in report.all_entries()), *report.all_left_out}


#: So many files that no format knows are named in notes one by one.
MOST_NAMED = 20


def _path_notes(paths: Sequence[str], what: str) -> list[str]:
    """A note on each file, or on how many there are."""
    named = [f"{path}: {what}" for path in paths[:MOST_NAMED]]
    more = len(paths) - len(named)
    return named + ([f"{counted(more, 'more file')}: {what}"] if more else [])


def _serious(findings: Iterable[Finding], written: str = "", final: str = "") -> tuple[Finding, ...]:
    """The errors and warnings among findings, with the final name of what was written under another."""
    serious = []
    for finding in findings:
        if finding.severity is not Severity.INFO:
            if written:
                path = None if finding.path is None else finding.path.replace(written, final)
                finding = replace(finding, path=path, message=finding.message.replace(written, final))
            serious.append(finding)
    return tuple(serious)


def _store_of(path: str, stores: Collection[LocalPath]) -> LocalPath | None:
    """The store that a path is, or lies in."""
    return next((folder for folder in (LocalPath(path), *LocalPath(path).parents) if folder in stores), None)


def _not_loaded(files: Sequence[File], stores: Sequence[Store]) -> list[str]:
    """The directories of data that no store has, because the system would not load them."""
    worked = {file.place.group for store in stores for file in store}
    unloaded = {file.place.group for file in files if file.place.state is not None and file.place.topic is not None}
    return sorted(group for group in unloaded - worked if group is not None)


def _in_no_store(files: Sequence[File], stores: Sequence[Store]) -> list[str]:
    """The files with data in directories whose names say nothing, next to stores: no system reads them there."""
    groups = {file.place.group for store in stores for file in store}
    around = {str(store.path).rpartition("/")[0] for store in stores}
    return [
        file.path
        for file in files
        if file.format is not None
        and (group := file.place.group) is not None
        and group not in groups
        and file.place.topic is None
        and file.place.partition is None
        and file.place.state is None
        and group.rpartition("/")[0] in around
        and file.format in registry.formats_with(RECORDS)
    ]


def _without_data(files: Sequence[File], stores: Sequence[Store]) -> list[str]:
    """The directories of a topic that have files about its data, and no data, and so are no store."""
    groups = dict.fromkeys((str(file.place.group) for store in stores for file in store), True)
    for file in files:
        place = file.place
        if place.topic is not None and place.group is not None and place.state is None and place.remote is None:
            groups[place.group] = groups.get(place.group, False) or file.format in registry.formats_with(RECORDS)
    return sorted(group for group, has_data in groups.items() if not has_data)


def _rewrite_of(family: str, verb: str) -> Rewrite:
    return registry.family(family).store_class.rewrites[verb]


def _distinct(stores: list[Store]) -> list[Store]:
    """Stores that go below one target. OptionError if two of them have the same name."""
    if len({store.name for store in stores}) < len(stores):
        raise OptionError("files of the same name are here; name the directory of one of them")
    return stores


def _safe(name: str) -> str:
    """The name of a store, which may be a path below the target. EncodeError for one that leads out of it."""
    descendant(LocalPath(), name)
    return name
