"""`erase`: a copy without chosen records or blobs, with a certificate."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog import registry
from rawlog.io.output import Folder, Output
from rawlog.model.errors import ExistsError, OptionError
from rawlog.model.finding import Finding, Mark
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.model.text import binary_value, counted
from rawlog.model.verb import Option, verb
from rawlog.reading.options import OUTPUT, Note, Path, Paths
from rawlog.reading.select import Tally
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.options import Erasing, bind_schemas, divide_options, open_sources, selection_of
from rawlog.verbs.repair import RewriteJob, RewriteResult, StoreSplit

if TYPE_CHECKING:
    from rawlog.model.format import (
        Elsewhere,
        Family,
        File,
        Keep,
    )
    from rawlog.model.job import Split, Stage
    from rawlog.model.outline import Reading
    from rawlog.model.store import Store
    from rawlog.reading.erasure import Chooser, Erasure, FileHash, StoreEvidence


#: The heading of what `erase` erases.
ERASED = "What to erase"


@verb(
    group="move",
    examples=(
        "rawlog erase /var/kafka-logs out/ --key customer-17",
        "rawlog erase /var/kafka-logs out/ --find alice@example.com --dry-run",
        "rawlog erase rocketmq-store/ out/ --where \"value.user = 'alice'\" --certificate alice.json",
        "rawlog erase /var/kafka-logs out/ --topic orders --decode value=auto --where \"value.user = 'alice'\"",
        "rawlog erase /data/ambry/9 out/ --blob AAYIAQSSAAgAAQAAAAAAAAAJ",
    ),
    more="Exit codes: 0 done; 1 an erased key or text still occurs, records were lost, or files were left out; 2 wrong usage, or an "
    "id that does not exist; 3 cannot be read or written. A note names keys without a record.",
    doing="erasing",
)
def erase(
    source: Annotated[Paths, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    key: Annotated[
        str | bytes | Sequence[str | bytes],
        Option("Erase records with this key; may be given again.", metavar="TEXT", section=ERASED),
    ] = (),
    keys: Annotated[
        Path | None, Option("Erase records with the keys in this file, one per line.", metavar="FILE", section=ERASED)
    ] = None,
    id: Annotated[
        str | Sequence[str],
        Option("Erase this message of RocketMQ or blob of Ambry; may be given again.", metavar="ID", section=ERASED),
    ] = (),
    blob: Annotated[str | Sequence[str], Option("The same as --id.", metavar="ID", section=ERASED)] = (),
    find: Annotated[
        str | bytes | None,
        Option("Erase records with this text in key, value or headers.", metavar="TEXT", section=ERASED),
    ] = None,
    certificate: Annotated[
        Path | None,
        Option(
            "Write the certificate here, as JSON; its text for people is next to it.  [default: DST.certificate.json]",
            metavar="FILE",
            section=OUTPUT,
        ),
    ] = None,
    force: Annotated[bool, Option("Replace DST and the certificate if they exist.", section=OUTPUT)] = False,
    dry_run: Annotated[bool, Option("Only report what would be removed, and write nothing.", section=OUTPUT)] = False,
    note: Note | None = None,
    **options: Unpack[Erasing],
) -> Report:
    """Write a copy without chosen records or blobs.

    `source` is never changed. A record is erased if it matches all given options: `key`, `id`, `find`, `where`, `topic` and others.
    `topic` alone erases all records of a topic. Several `source` belong together: a log directory and its remote storage, the disks of a
    broker, partitions of Ambry.

    Kafka logs: all other records keep their offsets, times, producers and transactions, as after Kafka's own log cleaner, and indexes are
    rebuilt. RocketMQ: a message becomes an empty message of the same size; its copies in the retry, delay, dead-letter and half-message
    topics are erased too; queues, tags and the key index are rebuilt. kafka-replay: entries are left out. Ambry: the content of a blob is
    overwritten with zeros, as by Ambry's own hard delete, and the blob is deleted.

    The `certificate` has the request, every erased record with a hash of it, hashes over all kept records, and hashes of all
    files of `source` and `target`. `rawlog verify DST --certificate FILE` checks it.

    Returns a Report. OptionError if nothing is named, an id does not exist, or sources have a partition twice; AccessError if `target`
    exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.erase("samples/kafka/transactions-0", "out/erased", key="k-1")
    """
    from rawlog.reading.erasure import Erasure
    from rawlog.reading.rows import check_names
    from rawlog.verbs.convert import keys_of

    matching, running = divide_options(options)
    chosen = selection_of(matching, as_bytes=True).replace(
        text=None if find is None else os.fsencode(find) if isinstance(find, str) else find, replicas="all"
    )
    decoded = {"decode": _decode_text(options.get("decode")), "schemas": options.get("schemas")}
    erased_keys = frozenset(keys_of(key, keys))
    ids = tuple(name for names in (id, blob) for name in ((names,) if isinstance(names, str) else names))
    is_limited = not chosen.takes_every_row or chosen.topics or chosen.topic_pattern or chosen.partitions
    if (keys is not None and not erased_keys) or not (erased_keys or ids or is_limited):
        raise OptionError("name what to erase: --key, --id, --find, --where or --topic")
    if find is not None and not find:
        raise OptionError("--find: a text expected")
    if chosen.transforms and chosen.where is None:
        raise OptionError("--decode needs --where, which compares decoded fields")
    if erased_keys and ids:
        raise OptionError("name what to erase by --key or by --id, not by both")
    left_out: list[str] = []
    engine, [tree] = open_sources([source], running, note=left_out.append)
    chosen = bind_schemas(chosen, tree, RECORDS)
    chosen.check(RECORDS)
    check_names(tree, RECORDS, chosen, note)
    papers = None if certificate is None else os.fspath(certificate)
    inputs = [] if keys is None else [os.fspath(keys)]
    with Erase(
        os.fspath(target),
        Erasure(chosen, erased_keys, ids, {name: str(value) for name, value in decoded.items() if value}),
        certificate=papers,
        inputs=inputs,
        overwrite=force,
        dry_run=dry_run,
        at_once=engine.at_once,
    ) as job:
        report = engine.run(job, tree, running.get("progress"))
    report.notes[:0] = left_out
    return report


def _decode_text(decode: str | Sequence[str] | Mapping[str, str] | None) -> str:
    """How rows are decoded, as one text."""
    if isinstance(decode, Mapping):
        return ",".join(f"{side}={how}" for side, how in decode.items())
    return decode if isinstance(decode, str) else ",".join(decode or ())


# The job --------------------------------------------------------------------------------------------------------------------


JSON, TEXT = ".certificate.json", ".certificate.txt"
#: So many mentions of erased keys are listed in the certificate, and so many absent keys in a note.
MOST_MENTIONS, SHOWN = 1000, 10


@dataclass(frozen=True, slots=True)
class EraseResult(RewriteResult):
    """A store that was erased from, and the evidence."""

    evidence: StoreEvidence | None = None
    sources: tuple[FileHash, ...] = ()
    results: tuple[FileHash, ...] = ()
    met: frozenset[bytes | str] = frozenset()
    mentions: tuple[str, ...] = ()
    #: What was counted when rows were decoded.
    tallies: tuple[Tally, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenSplit(StoreSplit):
    """A store, and what says which of its records are erased."""

    chooser: Chooser | None = None


class Erase(RewriteJob):
    """Erase records from stores. Use as a context manager: leaving it removes what a failed run left.

    `certificate` is where its JSON form is written; next to the target by default, and the text for people next to it.
    """

    #: A file that cannot be read may have what is to be erased.
    copies_unknown = False

    def __init__(
        self,
        target: str,
        erasure: Erasure,
        *,
        certificate: str | None = None,
        inputs: Sequence[str] = (),
        overwrite: bool = False,
        dry_run: bool = False,
        at_once: int = 1,
    ) -> None:
        """`inputs` are files that are read besides the stores: neither target nor certificate may touch them."""
        from rawlog.reading.erasure import VERB

        super().__init__(VERB, target, overwrite=overwrite, dry_run=dry_run, at_once=at_once)
        self.erasure, self.inputs = erasure, tuple(inputs)
        named = certificate if certificate is not None else f"{target.rstrip('/')}{JSON}"
        text = f"{named.removesuffix('.json')}.txt" if certificate is not None else f"{target.rstrip('/')}{TEXT}"
        self.papers = [Output(named, overwrite=overwrite), Output(text, overwrite=overwrite)]
        self._roots: tuple[str, ...] = ()
        #: The files of systems that tell copies of records, which may be in any of its stores.
        self._files: dict[str, list[File]] = {}
        self._choosers: dict[str, Chooser] = {}
        #: What exists elsewhere, and is not erased from.
        self._elsewhere: list[Elsewhere] = []

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        for paper in self.papers:
            paper.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """As for every verb; AccessError if a certificate is in the way, OptionError if it would be in a source or in the target."""
        self._roots = tree.roots
        self.output.refuse(self.inputs)
        for paper in self.papers:
            paper.refuse((*tree.sources, *self.inputs, self.named))
            if not self.dry_run and os.path.lexists(paper.path) and not self.overwrite:
                raise ExistsError(f"{paper.named}: exists already")
        splits = super().plan(tree)
        chosen = self.erasure.selection
        for family in registry.families():
            files = family.files_for(None, tree.files)
            self._elsewhere += [
                place
                for place in (family.store_class.elsewhere(files) if files else ())
                if chosen.takes_topic(place.topic) and (not chosen.partitions or place.partition in chosen.partitions)
            ]
        for content in (split.content for split in splits):
            if registry.family(content.family).store_class.can("copy_ids"):
                self._files.setdefault(content.family, []).extend(content.store.files)
        return splits

    def has_surroundings(self, family: Family, stores: Sequence[Store], roots: Sequence[str]) -> bool:
        """A partition keeps its own name below the target, also if it is alone."""
        return family.store_class.has_surroundings or super().has_surroundings(family, stores, roots)

    # Work -------------------------------------------------------------------------------------------------------------

    def keep(self, split: StoreSplit) -> Keep | None:
        assert isinstance(split, ChosenSplit)
        return None if split.chooser is None else split.chooser.keep()

    def work(self, split: Split, stage: Stage) -> EraseResult:
        """Erase from one store, and read what was written."""
        from rawlog.reading import erasure as certificates
        from rawlog.reading.erasure import VERB, StoreEvidence, file_hash
        from rawlog.reading.settlement import reading_of

        content: StoreSplit = split.content
        sources = tuple(
            file_hash(file.path, self._below_root(file.path)) for file in content.store if file.problem is None
        )
        evidence = StoreEvidence(content.place, content.family)
        met: frozenset[bytes | str] = frozenset()
        tallies: tuple[Tally, ...] = ()
        keeps = registry.family(content.family).store_class.rewrites[VERB].keeps
        if keeps:
            chooser = self._chooser(content.family).begun()
            evidence, met = self._evidence(content, chooser)
            tallies = chooser.erasure.selection.tallies
            chooser = chooser.begun()
            fields = {name: getattr(content, name) for name in StoreSplit.__dataclass_fields__}
            split = replace(split, content=ChosenSplit(**fields, chooser=chooser))
        done = super().work(split, stage)
        values = {name: getattr(done, name) for name in RewriteResult.__dataclass_fields__}
        result = EraseResult(**values, evidence=evidence if keeps else None, sources=sources, met=met, tallies=tallies)
        if self.dry_run:
            return result
        examined = self._examine(result, content, evidence)
        if keeps and any(finding.code == certificates.kept.code for finding in examined.remaining):
            # A record that was at a wrong offset, or in a wrong file, is where it belongs now.
            reading = reading_of(content.store)
            if reading.pieces is not None:
                evidence, met = self._evidence(
                    content, self._chooser(content.family).begun(), {content.store.path: reading}
                )
                examined = self._examine(replace(result, evidence=evidence, met=met), content, evidence)
        return examined

    def _evidence(
        self, split: StoreSplit, chooser: Chooser, readings: Mapping[str, Reading] | None = None
    ) -> tuple[StoreEvidence, frozenset[bytes | str]]:
        """What a store has before the erasure: the records that go, hashes over the others; and the keys and ids that were met."""
        from rawlog.reading.erasure import StoreEvidence, look

        seen = look(split.store.files, self.erasure, split.family, chooser.mask, readings=readings)
        removed = tuple(record.as_json() for record in seen.removed)
        return StoreEvidence(split.place, split.family, removed, tuple(seen.kept_json())), frozenset(seen.met)

    def _chooser(self, family: str) -> Chooser:
        """What says which records of a system are erased; made once wherever the job runs."""
        from rawlog.reading.erasure import Chooser

        if family not in self._choosers:
            self._choosers[family] = Chooser(self.erasure, family, self._files.get(family, ()))
        return self._choosers[family]

    def _examine(self, result: EraseResult, split: StoreSplit, evidence: StoreEvidence) -> EraseResult:
        """Add what the written files contain to a result."""
        from rawlog.reading import erasure as certificates
        from rawlog.reading.erasure import as_finding, differences, examine, file_hash, search_file

        final = f"{self.named.rstrip('/')}/{split.place}" if split.place else self.named.rstrip("/")
        tree = open_tree(result.folder)
        findings: list[Finding] = []
        mentions: list[str] = []
        if result.evidence is not None:
            files = [file for file in tree if file.system == split.family]
            seen = examine(files, evidence, self.erasure)
            for topic, partition, offset in seen.remains:
                mark = f"a record that was to be erased: {topic} partition {partition}"
                findings.append(as_finding(certificates.remains, Mark(mark, offset=offset, path=final)))
            marks = differences(evidence.kept, seen.kept, final)
            findings += [as_finding(certificates.kept, mark) for mark in marks]
            for mention, where in seen.mentions:
                _note(findings, mentions, mention, f"record {where}", final)
        results = []
        for path in _files_in(result.folder):
            named = f"{final}/{path}" if path != "." else final
            whole = f"{result.folder}/{path}" if path != "." else result.folder
            place = "/".join(part for part in (split.place, path) if part not in ("", ".")) or "."
            results.append(file_hash(whole, place))
            for mention, position in search_file(whole, self.erasure.searched()):
                _note(findings, mentions, mention, f"byte {position:,}", named)
        return replace(
            result, results=tuple(results), mentions=tuple(mentions), remaining=(*result.remaining, *findings)
        )

    def _below_root(self, path: str) -> str:
        """The path of a source file below the place that was named; all of it if several were."""
        for root in self._roots:
            if path.startswith(f"{root.rstrip('/')}/"):
                return path if len(self._roots) > 1 else path[len(root.rstrip("/")) + 1 :]
        return path.rpartition("/")[2]

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[RewriteResult]) -> Report:
        """Put the stores together, and write the certificate next to them. OptionError, with nothing written, for an absent id."""
        from rawlog.reading import erasure as certificates
        from rawlog.reading.erasure import as_finding
        from rawlog.reading.where import columns_of
        from rawlog.values.transform import Decode

        erased = [result for result in results if isinstance(result, EraseResult)]
        met = {name for part in erased for name in part.met}
        absent: list[Any] = [*sorted(self.erasure.keys - met), *(name for name in self.erasure.ids if name not in met)]
        if missing := [name for name in absent if isinstance(name, str)]:
            raise OptionError(f"{counted(len(missing), 'id')} not found here: {', '.join(missing[:3])}")
        report = super().commit(results)
        report.remaining += [
            finding for part in erased for finding in part.remaining if finding not in report.remaining
        ]
        report.remaining += [
            as_finding(certificates.elsewhere, Mark(place.text, path=place.path)) for place in self._elsewhere
        ]
        self._count(report, erased)
        chosen, tallies = self.erasure.selection, [part.tallies for part in erased if part.tallies]
        report.notes += chosen.judge(tallies)
        if chosen.where is not None:
            tested = columns_of(chosen.where, chosen.transformed(RECORDS))
            report.notes += [note for note in Decode.unseen(itertools.chain(*tallies)) if note.side in tested]
        if absent:
            texts = ", ".join(str(binary_value(name)) for name in absent[:SHOWN])
            more = f" and {len(absent) - SHOWN:,} more" if len(absent) > SHOWN else ""
            report.notes.append(f"no record has the {'key' if len(absent) == 1 else 'keys'} {texts}{more}")
        elif not report.counts["dropped"] and not report.counts.get("erased"):
            report.notes.append("no record matches: nothing was removed")
        if not self.dry_run:
            self._certify(report, erased, absent)
        return report

    def _count(self, report: Report, erased: Sequence[EraseResult]) -> None:
        stores = [part.evidence for part in erased if part.evidence is not None]
        report.counts["rows"] = sum(part["records"] for store in stores for part in store.kept)
        report.counts["dropped"] = sum(len(store.removed) for store in stores)
        mentions = sum(len(part.mentions) for part in erased)
        if mentions:
            what = counted(mentions, "place")
            report.notes.append(
                f"the erased keys, ids or texts still occur in {what} outside of the erased records; the certificate lists them"
            )

    def join_family(self, family: str, stores: Sequence[Store], reports: Sequence[Report], around: Folder) -> Report:
        """Only a directory that was named itself is written with what belongs around its partitions."""
        named = {root.rstrip("/") for root in self._roots}
        if all(str(store.path).rstrip("/") in named for store in stores):
            return Report(parts={store.name: report for store, report in zip(stores, reports, strict=True)})
        return super().join_family(family, stores, reports, around)

    def _certify(self, report: Report, erased: Sequence[EraseResult], absent: Sequence[bytes | str]) -> None:
        """Write the certificate, and its form for people."""
        from rawlog.reading import erasure as certificates
        from rawlog.reading.erasure import file_hash, search_file

        results = [file for part in erased for file in part.results]
        mentions = [f"{mention}" for part in erased for mention in part.mentions]
        paths = {file.path for file in results}
        for path in _files_in(str(self.target)):
            if path not in paths:
                whole = str(self.target / path) if path != "." else str(self.target)
                results.append(file_hash(whole, path))
                findings: list[Finding] = []
                for mention, position in search_file(whole, self.erasure.searched()):
                    _note(findings, mentions, mention, f"byte {position:,}", f"{self.named.rstrip('/')}/{path}")
                report.remaining += findings
        certificate = certificates.certificate(
            self.erasure,
            self._roots,
            self.named,
            source_files=[file for part in erased for file in part.sources],
            result_files=sorted(results, key=lambda file: file.path),
            stores=[part.evidence for part in erased if part.evidence is not None],
            absent=absent,
            mentions=mentions[:MOST_MENTIONS],
            elsewhere=[place.text for place in self._elsewhere],
            left_out=report.all_left_out,
        )
        texts = (json.dumps(certificate, indent=1, ensure_ascii=False), "\n".join(certificates.lines(certificate)))
        for paper, text in zip(self.papers, texts, strict=True):
            _write(paper, text + "\n")
        report.facts["certificate"] = self.papers[0].named


def _write(paper: Output, text: str) -> None:
    try:
        with paper:
            folder = Folder(paper.new(), named=paper.named)
            folder.write("certificate", text)
            paper.put(folder.path / "certificate")
    except OSError as error:
        raise paper.unwritable(error) from None


def _note(findings: list[Finding], mentions: list[str], mention: Any, where: str, path: str) -> None:
    """A text that is still there: a finding if it may not be, else a mention."""
    from rawlog.reading import erasure as certificates
    from rawlog.reading.erasure import as_finding

    text = repr(mention.text.decode("utf-8", "backslashreplace"))
    if mention.is_strict:
        findings.append(as_finding(certificates.remains, Mark(f"{text} is still there: {where}", path=path)))
    else:
        mentions.append(f"{text}: {path}: {where}")


def _files_in(folder: str) -> Iterator[str]:
    """The files below a directory, by their paths there; `.` for a file."""
    if os.path.isfile(folder):
        yield "."
        return
    for path in sorted(LocalPath(folder).rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix()
