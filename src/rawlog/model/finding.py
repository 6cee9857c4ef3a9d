"""Finding: something verification has to say, with its place; Rule: one thing it looks for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rawlog.model.errors import DONE, FOUND, UNREADABLE
from rawlog.model.table import FINDINGS
from rawlog.model.text import ROWS, counted, html_table, valid_text

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S")
#: The most findings of one rule on one window of a file, or on files together, that are listed one by one.
MOST = 10_000


class Severity(StrEnum):
    """How much a finding matters: data is wrong or lost; something is odd; worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a rule yields: where and what. The rule itself adds its code, severity, path and format."""

    message: str
    position: int | None = None
    size: int | None = None
    offset: int | None = None
    expected: object = None
    found: object = None
    path: str | None = None
    severity: Severity | None = None


class Few:
    """The first of very many marks, and how many more there are: a small file can hold millions of bad records."""

    def __init__(self, most: int = 19) -> None:  # with the mark for the rest as many as `verify` prints
        self.most = most
        self._first: list[Mark] = []
        self._more = 0
        self._worst: Mark | None = None

    def append(self, mark: Mark) -> None:
        if len(self._first) < self.most:
            self._first.append(mark)
            return
        self._more += 1
        if self._worst is None or _rank(mark.severity) < _rank(self._worst.severity):
            self._worst = mark

    def join(self, following: Few) -> None:
        """Take in the marks that follow these."""
        for mark in following._first:
            self.append(mark)
        self._more += following._more
        if following._worst is not None and (
            self._worst is None or _rank(following._worst.severity) < _rank(self._worst.severity)
        ):
            self._worst = following._worst

    @property
    def count(self) -> int:
        """How many there are, those that are not shown among them."""
        return len(self._first) + self._more

    def __iter__(self) -> Iterator[Mark]:
        yield from self._first
        yield from self.rest()

    def rest(self) -> Iterator[Mark]:
        """One mark for all that are not shown one by one."""
        if self._worst is not None:
            more = f"{self._more:,} more like this are not listed; one of them is here: {self._worst.message}"
            yield replace(self._worst, message=more)


def _rank(severity: Severity | None) -> int:
    """A rule's own severity first, then the given ones, the worst first."""
    return 0 if severity is None else list(Severity).index(severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the `findings` table."""

    code: str
    severity: Severity
    path: str | None
    format: str | None
    position: int | None
    size: int | None
    offset: int | None
    message: str
    expected: str | None = None
    found: str | None = None

    def as_row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in FINDINGS.names}

    @property
    def text(self) -> str:
        """The message, and what was expected and found where the message does not name it."""

        def is_named(value: str) -> bool:
            named = re.escape(value.replace(",", ""))
            return re.search(rf"(?<!\w){named}(?!\w)", self.message.replace(",", "")) is not None

        facts = [
            f"{name} {value}"
            for name, value in (("expected", self.expected), ("found", self.found))
            if value is not None and not is_named(value)
        ]
        return self.message + (f" ({', '.join(facts)})" if facts else "")


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings that say the same, one after the other in one file or of several files together; and those that follow from them."""

    items: list[Finding]
    following: list[FindingGroup] = field(default_factory=list)

    @property
    def first(self) -> Finding:
        return self.items[0]


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """A check with a stable code. Its docstring is its page in the docs: what it means, what to do."""

    code: str
    severity: Severity
    check: Callable[[S], Iterable[Mark]]
    #: (what a rule remembers of a split, the same of the split that follows) -> the same of both; None if those must be checked in one.
    merge: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None] | None = None
    #: (what it remembers of all of a file) -> what only that tells.
    finish: Callable[[dict[str, Any]], Iterable[Mark]] | None = None
    #: The rule that names the cause, if that found something in the same store. `above`: so many directories are between the two.
    follows: str | None = None
    above: int = 0
    #: Codes that it had in earlier releases: users may still name them.
    former: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        return inspect.cleandoc(self.check.__doc__ or "")

    def run(self, subject: S, *, path: str | None, format: str | None) -> Iterator[Finding]:
        """The findings of this rule on a file's window or a tree."""
        yield from self.report(self.check(subject), path=path, format=format)

    def report(self, marks: Iterable[Mark], *, path: str | None, format: str | None) -> Iterator[Finding]:
        """Marks as findings of this rule."""
        for mark in _limit_marks(marks):
            yield Finding(
                self.code,
                mark.severity or self.severity,
                mark.path or path,
                format,
                mark.position,
                mark.size,
                mark.offset,
                mark.message,
                None if mark.expected is None else str(mark.expected),
                None if mark.found is None else str(mark.found),
            )


def _limit_marks(marks: Iterable[Mark]) -> Iterator[Mark]:
    """Marks up to a number that memory holds, then one for the rest."""
    rest = Few(0)
    for count, mark in enumerate(marks):
        if count < MOST:
            yield mark
        else:
            rest.append(mark)
    yield from rest.rest()


def rule(
    code: str,
    severity: Severity,
    *,
    merge: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None] | None = None,
    finish: Callable[[dict[str, Any]], Iterable[Mark]] | None = None,
    follows: str | None = None,
    above: int = 0,
    former: tuple[str, ...] = (),
) -> Callable[[Callable[[S], Iterable[Mark]]], Rule[S]]:
    """Make a Rule of a generator function."""

    def make(check: Callable[[S], Iterable[Mark]]) -> Rule[S]:
        assert check.__doc__, f"rule {code} needs a docstring: what it means and what to do"
        return Rule(code, severity, check, merge, finish, follows, above, former)

    return make


#: What an offset, blob or entry can be: it is in exactly one of these classes.
CLASSES = ("present", "control", "aborted", "compacted", "deleted", "expired", "remote", "undecided", "unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account of every offset of a partition or queue, from 0 to `stop`: the `CLASSES` add up to it.

    `unit` says what is counted: offsets, the entries of a recording, or the blobs of a store. `start` is the first that should be there;
    of offsets, all before it have expired, or are in remote storage that is not among the paths. What is None does not exist in the system.
    """

    system: str
    topic: str | None = None
    partition: int | None = None
    path: str
    unit: str = "offset"
    start: int = 0
    stop: int
    present: int
    control: int | None = None
    aborted: int | None = None
    compacted: int | None = None
    deleted: int | None = None
    expired: int | None = None
    remote: int | None = None
    undecided: int | None = None
    unexplained: int
    broken_sequences: int | None = None
    open_transactions: int | None = None
    #: Messages whose time of delivery has not come.
    delayed: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether everything is explained and every sequence unbroken. What is open or not delivered yet is not missing."""
        return not (self.undecided or self.unexplained or self.broken_sequences)

    def as_row(self) -> dict[str, object]:
        return asdict(self)


class Effect(StrEnum):
    """What a system does to its files when it starts."""

    #: It does not start at all.
    REFUSES = "refuses"
    #: It starts without this log directory, or does not serve this partition.
    OFFLINE = "offline"
    #: It renames a directory, and serves its records no more.
    RENAMES = "renames"
    #: It makes an empty partition in place of one that is not there.
    CREATES = "creates"
    #: It cuts the end of a log off.
    CUTS = "cuts"
    #: It deletes all records of a log.
    EMPTIES = "empties"
    #: It takes the log to end before records that are there.
    HIDES = "hides"
    #: It leaves bytes that are no record at the end of a log, and appends after them.
    KEEPS = "keeps"
    #: It reads logs again to check them.
    RECOVERS = "recovers"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One thing that a system would do to the file or directory at `path`. `end_offset` is where a log would then end."""

    effect: Effect
    path: str
    message: str
    end_offset: int | None = None

    def as_json(self) -> dict[str, Any]:
        """What is known, for machines."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Startup:
    """What a system would do if it were started on these directories of one node, and on nothing else."""

    system: str
    paths: tuple[str, ...]
    node: int | None = None
    predictions: tuple[Prediction, ...] = ()

    @property
    def starts(self) -> bool:
        """Whether it would start at all."""
        return not any(prediction.effect is Effect.REFUSES for prediction in self.predictions)

    def with_predictions(self, more: Iterable[Prediction]) -> Startup:
        """The same with what is known of stores in its directories; the gravest effects first."""
        folders = {path.rstrip("/") for path in self.paths}
        inside = [prediction for prediction in more if prediction.path.rpartition("/")[0] in folders]
        order = list(Effect)
        return replace(
            self,
            predictions=tuple(
                sorted((*self.predictions, *inside), key=lambda prediction: order.index(prediction.effect))
            ),
        )

    def below(self, written: str, final: str) -> Startup:
        """The same under the name that a directory gets when it is finished."""

        def named(text: str) -> str:
            return text.replace(written, final)

        predictions = (
            replace(prediction, path=named(prediction.path), message=named(prediction.message))
            for prediction in self.predictions
        )
        return replace(self, paths=tuple(map(named, self.paths)), predictions=tuple(predictions))

    def answer(self) -> str:
        """Whether it would start, and how much it would do, in a few words."""
        if not self.starts:
            return "a broker would not start"
        changes = sum(prediction.effect is not Effect.RECOVERS for prediction in self.predictions)
        return f"a broker would start, with {counted(changes, 'consequence')}" if changes else "a broker would start"

    def lines(self, most: int = 20) -> Iterator[str]:
        """The answer, for people: a line on all of it, and one for each thing that would happen."""
        yield f"{', '.join(self.paths)}: {self.answer()}"
        for prediction in self.predictions[:most]:
            yield f"  {prediction.effect:<8} {prediction.message}"
        if len(self.predictions) > most:
            yield f"  … and {len(self.predictions) - most:,} more"

    def as_json(self) -> dict[str, Any]:
        """The answer, for machines."""
        node = {} if self.node is None else {"node": self.node}
        predictions = [prediction.as_json() for prediction in self.predictions]
        return {
            "system": self.system,
            "paths": list(self.paths),
            **node,
            "starts": self.starts,
            "predictions": predictions,
        }


#: The second word in the codes of rules that run only if completeness is asked for.
COMPLETE = "complete"


def is_on_request(code: str) -> bool:
    """Whether a rule runs only if completeness is asked for, or the rule is named."""
    return code.split(".")[1:2] == [COMPLETE]


#: The rules about files that were not checked: no format recognises them, or they cannot be read.
UNKNOWN, CANNOT_BE_READ = "rawlog.file.unknown", "rawlog.file.unreadable"


@dataclass(slots=True, repr=False)
class Findings:
    """The outcome of a verification: iterable, with a verdict and the counts a summary shows."""

    items: list[Finding] = field(default_factory=list)
    files: int = 0
    frames: int = 0
    #: The accounts of each partition, or of what its system has instead, if completeness was asked for.
    accounts: list[Account] = field(default_factory=list)
    #: What a system would do with each store when it starts; and what it would do with the directories of each node, these included.
    predictions: list[Prediction] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take in what was found elsewhere."""
        self.items += other.items
        self.accounts += other.accounts
        self.predictions += other.predictions
        self.startups += other.startups
        self.files += other.files
        self.frames += other.frames

    @property
    def errors(self) -> int:
        return sum(item.severity is Severity.ERROR for item in self.items)

    @property
    def warnings(self) -> int:
        return sum(item.severity is Severity.WARNING for item in self.items)

    @property
    def verdict(self) -> str:
        """`damaged` with errors, `suspect` with warnings only, `unknown` if there was no file of a known format, else `clean`."""
        if self.errors or self.warnings:
            return "damaged" if self.errors else "suspect"
        unknown = sum(item.code == UNKNOWN for item in self.items)
        return "unknown" if unknown >= self.files else "clean"

    @property
    def exit_code(self) -> int:
        """How a check ends: 1 with errors or warnings, 3 if they only say that files cannot be read, or no file is of a known format."""
        serious = {item.code for item in self.items if item.severity is not Severity.INFO}
        if serious - {CANNOT_BE_READ}:
            return FOUND
        return UNREADABLE if serious or self.verdict == "unknown" else DONE

    def summary(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "files": self.files,
            "frames": self.frames,
            "errors": self.errors,
            "warnings": self.warnings,
            **({"startup": [startup.as_json() for startup in self.startups]} if self.startups else {}),
        }

    def to_arrow(self) -> pa.Table:
        import pyarrow as pa

        rows = [
            {name: valid_text(value) if isinstance(value, str) else value for name, value in item.as_row().items()}
            for item in self.items
        ]
        return pa.Table.from_pylist(rows, schema=FINDINGS.schema)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        counts = f"{counted(self.errors, 'error')}, {counted(self.warnings, 'warning')}"
        return f"<rawlog.Findings {self.verdict}: {counts} in {counted(self.files, 'file')}>"

    def _repr_html_(self) -> str:
        """The first findings as a table, for a notebook."""
        names = ("severity", "code", "path", "position", "offset", "message")
        rows = ([getattr(item, name) for name in names] for item in self.items[:ROWS])
        return html_table(names, rows, repr(self))


def group_findings(findings: Iterable[Finding], rules: Iterable[Rule[Any]]) -> list[FindingGroup]:
    """Findings of one cause together, in the order of the first of each.

    Those of one file that say the same are one group, and those without a byte position of several files. A group whose rule names a
    cause (`Rule.follows`) that was found in the same store is part of the group of that cause.
    """
    groups: dict[tuple[object, ...], FindingGroup] = {}
    for finding in findings:
        key = (
            finding.code,
            finding.severity,
            finding.message,
            finding.offset if finding.position is None else finding.path,
        )
        groups.setdefault(key, FindingGroup([])).items.append(finding)
    followers = {rule.code: rule for rule in rules if rule.follows is not None}
    causes = _Causes()
    for group in groups.values():
        for above in {rule.above for rule in followers.values() if rule.follows == group.first.code}:
            causes.add(group, above)
    top: list[FindingGroup] = []
    for group in groups.values():
        rule = followers.get(group.first.code)
        cause = None if rule is None else causes.of(group.first, str(rule.follows))
        (top if cause is None else cause.following).append(group)
    return top


class _Causes:
    """Groups by rule, by the directory that their store begins in, and by offset."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, int | None], list[FindingGroup]] = {}

    def add(self, group: FindingGroup, above: int) -> None:
        finding = group.first
        if finding.path is not None:
            folder = finding.path.rsplit("/", above + 1)[0] if finding.path.count("/") > above else ""
            for offset in {finding.offset, None}:
                self._groups.setdefault((finding.code, folder, offset), []).append(group)

    def of(self, finding: Finding, code: str) -> FindingGroup | None:
        """The cause of a finding: in the same store, and about the same offset if the finding names one."""
        folder = finding.path or ""
        while folder:
            folder = folder.rpartition("/")[0]
            near = self._groups.get((code, folder, finding.offset), ())
            named = (group for group in near if str(group.first.path).split("/")[-2:][0] in finding.message)
            if near:
                return next(named, near[0])
        return None
