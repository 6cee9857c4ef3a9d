"""`verify`: every file is checked, and files that belong together; `rawlog.rules` lists the rules."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Unpack

from rawlog import registry
from rawlog.model.errors import (
    DataError,
    OptionError,
    UnknownFormatError,
    unknown,
)
from rawlog.model.finding import Finding, Findings, Rule, Severity
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS, File, Replicas, lasting
from rawlog.model.job import (
    Job,
    Outcome,
    Split,
    SplitResult,
    Stage,
    packed,
)
from rawlog.model.store import Panel, Store, join_stores, unread_size
from rawlog.model.text import printable
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Format, Limits, Note, Path, Paths, texts
from rawlog.reading.select import Selection, Transform
from rawlog.reading.tree import Tree
from rawlog.verbs.options import (
    Page,
    Verifying,
    bind_schemas,
    check_page,
    open_sources,
    readable,
    running_of,
    transforms_of,
    write_page,
)

if TYPE_CHECKING:
    from rawlog.reading.inspect import FileCheck, RuleChoice


@verb(
    group="check and repair",
    examples=(
        "rawlog verify kafka-logs/",
        "rawlog verify kafka-logs/ --against s3://replica/kafka-logs --json",
        "rawlog verify kafka-logs/ --rule kafka.log --skip kafka.log.gap",
        "rawlog verify erased/ --certificate erased.certificate.json",
        "rawlog verify kafka-logs/ tiered-storage/ --complete",
        "rawlog verify --rules",
    ),
    more="Exit codes: 0 no errors and no warnings; 1 errors or warnings; 2 wrong usage; 3 something could not be read, or "
    "has no known format.",
    doing="verifying",
)
def verify(
    paths: Annotated[Paths, Option("PATH", is_required=False)],
    *,
    rule: Annotated[
        str | Iterable[str],
        Option("Only this rule, or all below a prefix such as kafka.log; may be given again.", metavar="CODE"),
    ] = (),
    skip: Annotated[str | Iterable[str], Option("Skip this rule or prefix; may be given again.", metavar="CODE")] = (),
    against: Annotated[
        Path | None,
        Option("Also compare with the replicas at OTHER; OTHER itself is not checked.", metavar="OTHER"),
    ] = None,
    certificate: Annotated[
        Path | None,
        Option("Also check the result of an erasure against its certificate, a JSON file.", metavar="FILE"),
    ] = None,
    complete: Annotated[
        bool, "Also account for every offset, blob or entry: count what exists, and explain what is missing."
    ] = False,
    format: Format = None,
    schemas: Annotated[
        Path | None,
        Option("Where the schemas for --certificate come from, if the erasure decoded values.", metavar="PLACE"),
    ] = None,
    html: Page = None,
    note: Note | None = None,
    **options: Unpack[Verifying],
) -> Findings:
    """Check everything: findings and a verdict.

    Every file is checked, and files that belong together. Damage is a finding; nothing is changed.

    Returns Findings: iterate over it, or ask for its `verdict`. `rawlog.rules()` lists the rules. With `complete`, `accounts` of the result
    has a class for every offset of each partition or queue, every blob of a store and every entry of a recording, and what nothing explains
    is a finding. The result of an erasure must be unchanged, and must not contain what was erased. Damage never raises. OptionError
    for an unknown rule, AccessError for a path that does not exist.

    >>> import rawlog
    >>> verdict = rawlog.verify("samples/kafka").verdict
    """
    from rawlog.reading.inspect import RuleChoice

    most, headers = options.get("max_decompressed", MAX_DECOMPRESSED), options.get("max_headers", MAX_HEADERS)
    running = running_of(options, Limits.__annotations__)
    chosen = check_chosen(RuleChoice(texts(rule), texts(skip), most, headers, complete))
    places = [paths] if against is None else [paths, against]
    engine, (tree, *others) = open_sources(places, running, format=format, note=note, must_know=False)
    other = readable(others[0], note) if others else None
    if other is not None and not any(file.format for file in other):
        raise UnknownFormatError(f"{os.fspath(against or '')}: no file of any known format here")
    check_page(html, (*tree.sources, *(other.sources if other else ())))
    check_erasure = None if certificate is None else _erasure_check(certificate, tree, schemas)
    findings = engine.run(Verify(chosen, other), tree, running.get("progress")).findings
    if check_erasure is not None:
        findings.items += check_erasure()
    if html is not None:
        from rawlog.pages.results import verify_page
        from rawlog.verbs.report import causes, next_steps

        grouped = causes(findings, tree.roots)
        steps = next_steps(findings, grouped, tree)
        write_page(
            html, verify_page(findings, grouped, steps, tree.roots), (*tree.sources, *(other.sources if other else ()))
        )
    return findings


def repairable(codes: Collection[str]) -> set[str]:
    """Those rules whose findings `repair` handles."""
    systems = {code.partition(".")[0] for code in codes}
    rewrites = {family.name: family.store_class.rewrites for family in registry.families() if family.name in systems}
    unrepaired = {code for verbs in rewrites.values() for rewrite in verbs.values() for code in rewrite.unrepaired}
    return {code for code in codes if "repair" in rewrites.get(code.partition(".")[0], ()) and code not in unrepaired}


def repair_commands(findings: Iterable[Finding], roots: Sequence[str]) -> list[str]:
    """The repairs to try, one for each named path with errors or warnings that a repair handles."""
    serious = [finding for finding in findings if finding.severity is not Severity.INFO]
    codes = repairable({finding.code for finding in serious})
    damaged = dict.fromkeys(_root([finding], roots) for finding in serious if finding.code in codes)
    return [_repair_command(root) for root in damaged]


def repair_command(findings: Sequence[Finding], roots: Sequence[str]) -> str:
    """The repair to try for the named path with the first of these findings."""
    return _repair_command(_root(findings, roots))


def _repair_command(root: str) -> str:
    return shlex.join(["rawlog", "repair", root, "repaired", "--dry-run"])


def _root(findings: Sequence[Finding], roots: Sequence[str]) -> str:
    path = next((finding.path for finding in findings if finding.path is not None), roots[0])
    return max((root for root in roots if path.startswith(root.rstrip("/"))), key=len, default=roots[0])


def _erasure_check(path: Path, tree: Tree, schemas: Path | None) -> Callable[[], Iterable[Finding]]:
    """What compares the result of an erasure with its certificate, which is read now. OptionError if they do not fit."""
    from rawlog.reading import erasure as certificate

    proof = certificate.load(os.fspath(path))
    if len(tree.roots) != 1:
        raise OptionError("name the result of one erasure with its certificate")
    transforms = _decode_transforms(proof.get("asked"), tree, schemas)

    def check() -> Iterable[Finding]:
        try:
            return certificate.check(proof, tree, tree.roots[0], transforms)
        except DataError as error:  # the damage is a finding already
            return [certificate.unread(error)]

    return check


def _decode_transforms(request: Any, tree: Tree, schemas: Path | None) -> tuple[Transform, ...]:
    """What decodes rows as an erasure did. An invalid wish is a finding of the certificate. OptionError if the user did not name the
    schemas: a certificate may be anybody's file, and nothing is read or compiled only because it says so.
    """
    from rawlog.reading.erasure import decode_is_valid
    from rawlog.values.registry import TOPIC

    if not isinstance(request, dict) or not request.get("decode") or not decode_is_valid(request):
        return ()
    if schemas is None:
        place = printable(request.get("schemas") or f"the directory with the topic {TOPIC}")
        raise OptionError(f"the certificate says that values were decoded: name their schemas with --schemas ({place})")
    wishes = {name: request.get(name) for name in ("decode", "where", "find")}
    return bind_schemas(
        Selection(transforms=transforms_of({**wishes, "schemas": schemas}, as_bytes=True)), tree
    ).transforms


def rules(*, rule: str | Iterable[str] = (), skip: str | Iterable[str] = ()) -> list[Rule[Any]]:
    """The rules that `rawlog.verify` checks; each has a `code`, a `severity` and what it is `about`. As `rawlog verify --rules`.

    OptionError for a `rule` or `skip` that no rule's code begins with.

    >>> import rawlog
    >>> codes = [rule.code for rule in rawlog.rules(rule="kafka.log")]
    """
    from rawlog.reading.inspect import RuleChoice

    chosen = check_chosen(RuleChoice(texts(rule), texts(skip), complete=True))
    return [candidate for candidate in all_rules() if chosen.takes(candidate.code)]


def all_rules(systems: Collection[str] | None = None) -> Sequence[Rule[Any]]:
    """Every rule rawlog has, by code; with `systems` only the rules of these. `rawlog` is the system of rules that all have."""
    from rawlog.reading.inspect import FILE_RULES, framing_rules

    rules: list[Rule[Any]] = [*FILE_RULES]
    if systems is None or "rawlog" in systems:
        from rawlog.reading.compare import RULES
        from rawlog.reading.erasure import RULES as CERTIFICATE_RULES
        from rawlog.values.reasons import RULES as VALUE_RULES

        rules += [*RULES, *CERTIFICATE_RULES, *VALUE_RULES]
    near = registry.families() if systems is None else registry.families_of(systems)
    for family in (candidate for candidate in near if systems is None or candidate.name in systems):
        for format in family.formats:
            if format.can("scan"):
                rules += framing_rules(format)
            rules += format.all_rules
        kind = family.store_class
        rules += [*kind.rules(), *kind.tree_rules(), *kind.replica_rules()]
    return sorted(rules, key=lambda rule: rule.code)


def check_chosen(chosen: RuleChoice) -> RuleChoice:
    """The same rules to run, those that were renamed under their names of today. OptionError if a name is not that of a rule."""
    if not chosen.only and not chosen.skip:
        return chosen
    rules = all_rules()
    codes = [rule.code for rule in rules]
    today = {former: rule.code for rule in rules for former in rule.former}
    only, skip = (tuple(today.get(name, name) for name in names) for names in (chosen.only, chosen.skip))
    for name in (*only, *skip):
        if not any(code == name or code.startswith(f"{name}.") for code in codes):
            raise unknown("rule", name, codes)
    return replace(chosen, only=only, skip=skip)


# The job --------------------------------------------------------------------------------------------------------------------


#: Small files are put into one split, up to so many bytes and files: starting one costs more than reading them.
SMALLEST, LARGEST = 1 << 20, 32 << 20
SPLIT_FILES = 64
#: So many splits at least, if there is enough to do, so that every thread or task finds some.
SPLITS = 16
#: Files from this size on are checked in splits, where their format can.
CUT = 64 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes of a file to check, and the files next to it that the pass looks into."""

    file: File
    near: tuple[File, ...] = ()
    start: int | None = None
    stop: int | None = None

    @property
    def size(self) -> int:
        return (self.file.size if self.stop is None else self.stop) - (self.start or 0)


@dataclass(frozen=True, slots=True)
class VerifySplit:
    """What one split checks: spans of files; stores; a pair of replicas; or the tree."""

    spans: tuple[FileSpan, ...] = ()
    groups: tuple[Store, ...] = ()
    replicas: Replicas | None = None
    tree: Store | None = None


@dataclass(frozen=True, slots=True)
class VerifySplitResult(SplitResult):
    """The result of one split."""

    checked: tuple[FileCheck, ...] = ()
    #: What checks over several files gave.
    findings: Findings = field(default_factory=Findings)
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyResult(Outcome):
    """All findings, in the order of the tree's files; then those on groups of files, on replicas, and on all of them."""

    findings: Findings


@dataclass(slots=True)
class _Progress:
    """What the driver knows between rounds."""

    tree: Tree
    planned: list[VerifySplit] = field(default_factory=list)
    whole: dict[str, FileCheck] = field(default_factory=dict)
    done: int = 0
    is_compared: bool = False
    #: What checks over several files gave.
    together: Findings = field(default_factory=Findings)


class Verify(Job[VerifySplitResult, VerifyResult]):
    """Check everything in a tree. Damage is a finding, never an error."""

    #: Whether families are asked what they show of each store.
    with_panels = False

    def __init__(self, chosen: RuleChoice | None = None, against: Tree | None = None) -> None:
        """`chosen` says which rules to run; OptionError if it names one that does not exist. `against` has replicas to compare with."""
        from rawlog.reading.inspect import RuleChoice

        self.chosen = check_chosen(chosen or RuleChoice())
        self.against = against
        self._now: _Progress | None = None

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each large span of a file; several small ones are in one split."""
        self._now = _Progress(tree)
        with lasting():
            spans = [span for file in tree for span in _spans(file, tree.group_of(file))]
            return self._splits([VerifySplit(spans=run) for run in _pack(spans, lambda span: span.size)])

    def _splits(self, splits: Iterable[VerifySplit]) -> list[Split]:
        assert self._now is not None
        first = len(self._now.planned)
        self._now.planned += splits
        return [Split(first + at, _weight(split), split) for at, split in enumerate(self._now.planned[first:])]

    def work(self, split: Split, stage: Stage) -> VerifySplitResult:
        """The findings on the split's files, or on files together."""
        from rawlog.reading.inspect import inspect_group, inspect_replicas, inspect_tree

        content: VerifySplit = split.content
        checked: list[FileCheck] = []
        for span in content.spans:
            before = [span.start or 0]

            def seen(frames: Any, before: list[int] = before) -> None:
                stage.advance(frames.reached_in_file - before[0], len(frames))
                before[0] = frames.reached_in_file

            store = Store((span.file, *span.near))
            checked.append(self._check(span, store, seen))
        panels: list[Panel] | None = [] if self.with_panels else None
        findings = Findings()
        for group in content.groups:
            findings.add(inspect_group(group, self.chosen, panels))
        if content.replicas is not None:
            from rawlog.reading.compare import rules_for

            findings.add(inspect_replicas(content.replicas, rules_for(content.replicas), self.chosen))
        if content.tree is not None:
            findings.add(inspect_tree(Tree((), content.tree.files), self.chosen, content.tree.summaries))
        if not content.spans:
            stage.advance(split.size)
        return VerifySplitResult(split.number, tuple(checked), findings, tuple(panels or ()))

    def _check(self, span: FileSpan, store: Store, seen: Callable[[Any], None]) -> FileCheck:
        from rawlog.reading.inspect import check_file

        return check_file(span.file, self.chosen, seen, store=store, start=span.start, stop=span.stop)

    def follow(self, results: Sequence[VerifySplitResult]) -> list[Split]:
        """First files whose splits do not fit together, each in one split; then the checks over several files."""
        from rawlog.reading.inspect import near

        now = self._now
        assert now is not None
        again = self._take(results[now.done :])
        now.done = len(results)
        if again:
            nearby = {file.path: near(file, now.tree.group_of(file)) for file in again}
            return self._splits([VerifySplit(spans=(FileSpan(file, nearby[file.path]),)) for file in again])
        if now.is_compared:
            return []
        now.is_compared = True
        return self._splits(self._joint_splits())

    def _take(self, results: Iterable[VerifySplitResult]) -> list[File]:
        """Put the splits of each file together; the files that must be checked in one."""
        now = self._now
        assert now is not None
        fresh: dict[str, list[FileCheck]] = {}
        for result in results:
            now.together.add(result.findings)
            for checked in result.checked:
                fresh.setdefault(checked.file.path, []).append(checked)
        again = []
        for path, parts in fresh.items():
            first = parts[0]
            if all(first.merge(part, self.chosen) for part in parts[1:]):
                now.whole[path] = first
            else:
                again.append(first.file)
        return again

    def _joint_splits(self) -> list[VerifySplit]:
        now = self._now
        assert now is not None
        summaries = {path: check.summary for path, check in now.whole.items() if check.summary is not None}
        stores = [group.with_summaries(summaries) for group in (*now.tree.groups, *self._single(now.tree))]
        splits = [VerifySplit(groups=groups) for groups in _pack(stores, unread_size)]
        if self.against is not None:
            from rawlog.reading.compare import replicas_of

            splits += [VerifySplit(replicas=replicas) for replicas in replicas_of(now.tree, self.against)]
        if len(now.tree):
            splits.append(VerifySplit(tree=join_stores(now.tree.files, stores)))
        return splits

    def _single(self, tree: Tree) -> list[Store]:
        """The files that are stores of their own, if they are to be accounted for: all other checks of them are done."""
        if not self.chosen.asks_completeness:
            return []
        names = {family.name for family in registry.families_of(file.system for file in tree) if family.is_single}
        return [tree.group_of(file) for file in tree if file.place.group is None and file.system in names]

    def commit(self, results: Sequence[VerifySplitResult]) -> VerifyResult:
        """Put the findings in order."""
        result = Findings()
        if self._now is not None:
            for file in self._now.tree:
                if (check := self._now.whole.get(file.path)) is not None:
                    result.add(check.finish(self.chosen))
            together = self._now.together
            result.add(together)
            result.startups = [startup.with_predictions(together.predictions) for startup in together.startups]
        return VerifyResult(result)

    def __getstate__(self) -> dict[str, object]:
        # What is known between rounds stays on the driver, and so do the trees: splits name their files.
        return {"chosen": self.chosen, "_now": None, "against": None}


def _spans(file: File, store: Store) -> list[FileSpan]:
    """A file to be checked, in splits if it is large and its format knows where to cut it without reading it."""
    from rawlog.reading.inspect import near

    nearby = near(file, store)
    format = registry.formats().get(str(file.format))
    if (
        format is None
        or not format.can("summary")
        or not format.can("cuts")
        or file.size < CUT * 3 // 2
        or file.problem
    ):
        return [FileSpan(file, nearby)]
    edges = [None, *format.codec.cuts(file, store, CUT), None]
    return [FileSpan(file, nearby, start, stop) for start, stop in pairwise(edges)]


def _weight(split: VerifySplit) -> int:
    both = () if split.replicas is None else (*split.replicas.a, *split.replicas.b)
    return sum(span.size for span in split.spans) + sum(map(unread_size, split.groups)) + _size(both)


def _size(files: Sequence[File]) -> int:
    return sum(file.size for file in files)


def _pack(items: Sequence[T], size_of: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Runs of items, in order, each large enough for a split."""
    target = min(max(sum(map(size_of, items)) // SPLITS, SMALLEST), LARGEST)
    return packed(items, size_of, target, SPLIT_FILES)
