"""The functions that check, compare and rewrite: verify, rules, diff, repair, rebuild, compact."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog.engines.choice import Engine, choose
from rawlog.model.errors import (
    DataError,
    OptionError,
    UnknownFormatError,
    unknown,
)
from rawlog.model.finding import Findings, Rule
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS
from rawlog.model.recovery import INCLUDED
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.model.text import printable
from rawlog.model.verb import Kind, Option, verb
from rawlog.reading.select import Selection, Transform
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.verbs.options import (
    OUTPUT,
    Comparing,
    Force,
    Format,
    Limits,
    NewCluster,
    Note,
    Page,
    Path,
    Paths,
    Rescuing,
    Running,
    SystemOptions,
    Time,
    Topics,
    Verifying,
    bound,
    listed,
    noted,
    option_texts,
    readable,
    selection_of,
    transforms_of,
    whole_paths,
)

if TYPE_CHECKING:
    from rawlog.verbs.diff import Differences


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
        Option("Also compare with the replicas at OTHER, which is not checked by itself.", metavar="OTHER"),
    ] = None,
    certificate: Annotated[
        Path | None,
        Option("Also check the result of an erasure against its certificate, a JSON file.", metavar="FILE"),
    ] = None,
    complete: Annotated[
        bool, "Also account for every offset, blob or entry: how many are there, and why others are not."
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
    is a finding. The result of an erasure must be unchanged since, and have nothing that was to be erased. Damage never raises. OptionError
    for an unknown rule, AccessError for a path that does not exist.

    >>> import rawlog
    >>> verdict = rawlog.verify("samples/kafka").verdict
    """
    from rawlog.reading.certificate import check as check_certificate
    from rawlog.reading.certificate import load as load_certificate
    from rawlog.reading.certificate import unread as certificate_unread
    from rawlog.reading.inspect import RuleChoice
    from rawlog.verbs.diff import check_chosen
    from rawlog.verbs.verify import Verify

    most, headers = options.get("max_decompressed", MAX_DECOMPRESSED), options.get("max_headers", MAX_HEADERS)
    running = running_of(options, Limits.__annotations__)
    chosen = check_chosen(RuleChoice(_texts(rule), _texts(skip), most, headers, complete))
    places = [paths] if against is None else [paths, against]
    engine, (tree, *others) = open_sources(places, running, format=format, note=note, must_know=False)
    other = readable(others[0], note) if others else None
    if other is not None and not any(file.format for file in other):
        raise UnknownFormatError(f"{os.fspath(against or '')}: no file of any known format here")
    _check_page(html, (*tree.sources, *(other.sources if other else ())))
    proof = None if certificate is None else load_certificate(os.fspath(certificate))
    if proof is not None and len(tree.roots) != 1:
        raise OptionError("name the result of one erasure with its certificate")
    transforms = () if proof is None else _decoding(proof.get("asked"), tree, schemas)
    found = engine.run(Verify(chosen, other), tree, running.get("progress")).findings
    if proof is not None:
        try:
            found.items += check_certificate(proof, tree, tree.roots[0], transforms)
        except DataError as error:  # the damage is a finding already
            found.items.append(certificate_unread(error))
    if html is not None:
        from rawlog.pages.results import verify_page
        from rawlog.verbs.report import causes, next_steps

        grouped = causes(found, tree.roots)
        steps = next_steps(found, grouped, tree)
        _write_page(
            html, verify_page(found, grouped, steps, tree.roots), (*tree.sources, *(other.sources if other else ()))
        )
    return found


def _decoding(asked: Any, tree: Tree, schemas: Path | None) -> tuple[Transform, ...]:
    """What decodes rows as an erasure did. An invalid wish is a finding of the certificate. OptionError if the user did not name the
    schemas: a certificate may be anybody's file, and nothing is read or compiled only because it says so.
    """
    from rawlog.reading.certificate import decode_is_valid
    from rawlog.values.registry import TOPIC

    if not isinstance(asked, dict) or not asked.get("decode") or not decode_is_valid(asked):
        return ()
    if schemas is None:
        place = printable(asked.get("schemas") or f"the directory with the topic {TOPIC}")
        raise OptionError(f"the certificate says that values were decoded: name their schemas with --schemas ({place})")
    wishes = {name: asked.get(name) for name in ("decode", "where", "find")}
    return bound(Selection(transforms=transforms_of({**wishes, "schemas": schemas}, as_bytes=True)), tree).transforms


def rules(*, rule: str | Iterable[str] = (), skip: str | Iterable[str] = ()) -> list[Rule[Any]]:
    """The rules that `rawlog.verify` checks; each has a `code`, a `severity` and what it is `about`. As `rawlog verify --rules`.

    OptionError for a `rule` or `skip` that no rule's code begins with.

    >>> import rawlog
    >>> codes = [one.code for one in rawlog.rules(rule="kafka.log")]
    """
    from rawlog.reading.inspect import RuleChoice
    from rawlog.verbs.diff import all_rules, check_chosen

    chosen = check_chosen(RuleChoice(_texts(rule), _texts(skip), complete=True))
    return [one for one in all_rules() if chosen.takes(one.code)]


@verb(
    group="check and repair",
    examples=(
        "rawlog diff kafka-logs/ restored/",
        "rawlog diff a/orders-0 b/orders-0 --columns value --limit 5 --json",
    ),
    more="Exit codes: 0 the same; 1 differences or damage; 2 wrong usage; 3 cannot be read.",
    doing="comparing",
)
def diff(
    a: Annotated[Path, "A"],
    b: Annotated[Path, "B"],
    *,
    limit: Annotated[
        int, Option("List at most N differences of each partition or store; all are counted.", least=1, metavar="N")
    ] = 1000,
    format: Format = None,
    html: Page = None,
    note: Note | None = None,
    **selection: Unpack[Comparing],
) -> Differences:
    """Show what two places do not agree on.

    Records are compared by topic, partition and offset, whatever their batches and compression: what only one side has, as ranges of
    offsets, and which columns differ. Blob stores are compared blob by blob, clusters by their settings. If each side is one partition, its
    name does not matter.

    Returns Differences: iterate over it, or ask whether it `is_same`. Its `notes` say what was passed over with `errors`; `damage` has
    those notes that count. Raises DataError at damage unless `errors` says otherwise, OptionError for an unknown name, AccessError for a
    path that does not exist.

    >>> import rawlog
    >>> same = rawlog.diff("samples/kafka", "samples/kafka").is_same
    """
    from rawlog.reading.names import check_names
    from rawlog.reading.parts import choose as choose_replicas
    from rawlog.verbs.diff import Diff

    asked, running = divided(selection)
    chosen = selection_of(asked)
    engine, trees = open_sources((a, b), running, format=format, note=note)
    trees = [choose_replicas(readable(tree, note), chosen, note or noted) for tree in trees]
    check_names(trees, RECORDS, chosen, note)
    _check_page(html, (*trees[0].sources, *trees[1].sources))
    found = engine.run(Diff(trees[1], chosen, limit), trees[0], running.get("progress"))
    for text in found.notes:
        (note or noted)(text)
    if html is not None:
        from rawlog.pages.results import diff_page

        page = diff_page(found.tally, os.fspath(a), os.fspath(b), found.damage)
        _write_page(html, page, (*trees[0].sources, *trees[1].sources))
    return found


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
            "salvage keeps all that is sound (default); broker (RocketMQ: cut) what the real system would keep; strict refuses.",
            metavar="NAME",
        ),
    ] = None,
    dry_run: Annotated[bool, "Only report what would be kept, cut and rebuilt."] = False,
    quarantine: Annotated[
        Path | None,
        Option("Kafka: keep here what is cut, and the records in it that can still be read.", metavar="DIR"),
    ] = None,
    move: Annotated[bool, "RocketMQ: close holes, so that later messages change their physical offsets."] = False,
    html: Page = None,
    option: SystemOptions = None,
    force: Force = False,
    **running: Unpack[Running],
) -> Report:
    """Write a repaired copy; report what was kept, cut and rebuilt.

    `target` gets everything that is sound in `source`, so that the real system opens it. Files that are derived from the data are rebuilt.
    Every loss is reported with its place. `source` is never changed; `target` must not exist yet.

    Returns a Report. AccessError if `target` exists and not `force`; OptionError if it is in the source.

    >>> import rawlog
    >>> report = rawlog.repair("samples/kafka/transactions-0", "out/repaired", dry_run=True)
    """
    own = option_texts(option, policy=policy, quarantine=_text(quarantine), move="true" if move else None)
    _check_page(html, [os.fspath(source)])
    done = rewrite("repair", source, target, own, force, None, running, dry_run=dry_run)
    if html is not None:
        _write_report(html, done, [os.fspath(source)])
    return done


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
            "Kafka: memory for the map of keys; less takes more rounds.  [default: 128M]",
            kind=Kind.SIZE,
            metavar="SIZE",
        ),
    ] = None,
    roll: Annotated[bool, "Kafka: compact the active segment too, as if a new one had been begun."] = False,
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
    own = option_texts(
        option,
        topic=",".join(topics) if topics else None,
        now=now.isoformat() if isinstance(now, datetime) else now,
        memory=memory,
        roll="true" if roll else None,
    )
    return rewrite("compact", source, target, own, force, note, running)


@verb(
    group="check and repair",
    examples=(
        "rawlog rescue /mnt/disk1 /mnt/disk2 /mnt/disk3 --plan",
        "rawlog rescue /mnt/disk* --to /restored",
        "rawlog rescue /mnt/disk* --to /restored --nodes 3 --resume",
    ),
    more="Exit codes: 0 nothing is lost; 1 something is lost, corrected, undecided or left out; 2 wrong usage; 3 cannot be read or "
    "written.",
    doing="rescuing",
)
def rescue(
    paths: Annotated[Paths, "DIR"],
    *,
    to: Annotated[
        Path | None,
        Option("The directory to write; it must not exist yet.", "-o", "--to", metavar="DST", section=OUTPUT),
    ] = None,
    plan: Annotated[bool, "Only report what would be taken from where, and what is lost."] = False,
    topic: Topics = None,
    include: Annotated[
        str | Iterable[str],
        Option(
            f"Use directories too that a broker does not load: {', '.join(INCLUDED)} (deleted topics).",
            metavar="STATE,...",
            is_repeated=False,
        ),
    ] = (),
    exclude_deleted: Annotated[bool, "Leave out topics that are marked as deleted on other disks."] = False,
    brokers: Annotated[
        int, Option("Write N data directories.", "--nodes", old=("--brokers",), least=1, metavar="N", section=OUTPUT)
    ] = 1,
    resume: Annotated[bool, "Continue an interrupted run; finished partitions are kept."] = False,
    html: Page = None,
    option: SystemOptions = None,
    force: Force = False,
    **options: Unpack[Rescuing],
) -> Report:
    """Combine the replicas on the disks of a dead cluster into one directory.

    `to` is then a directory that a broker can start on. Each `paths` is a log directory of a broker, or has several of them below it; any
    of them may be missing or damaged. For each partition the replica decides that led when the cluster died. What is damaged there is
    taken from another replica of the same history. A log that contradicts it is kept, readable, in DST.divergent. Topic ids, offsets,
    settings and committed offsets of groups stay. Everything that is lost is listed, with offsets and times, and so is what cannot be
    known. The disks are never changed.

    Returns a Report. Its `facts["plan"]` lists for each partition the replicas, the choice and its reason, what is lost and what cannot be
    known. OptionError for disks of several clusters or of a running broker; AccessError if `to` exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.rescue("samples/kafka", plan=True)
    """
    from rawlog.model.recovery import RescueOptions
    from rawlog.verbs.rescue import Rescue

    running = running_of(options, NewCluster.__annotations__)
    if to is None and not plan:
        raise OptionError("name the directory to write with --to, or ask for --plan")
    states = frozenset(part.strip() for text in _texts(include) for part in text.split(",") if part.strip())
    if extra := states - set(INCLUDED):
        raise unknown("state", min(extra), INCLUDED)
    asked = RescueOptions(
        topics=_texts(topic or ()),
        include=states,
        exclude_deleted=exclude_deleted,
        brokers=brokers,
        node=options.get("node_id", 1),
        cluster_id=options.get("cluster_id"),
        level=options.get("metadata_version"),
        keep_retention=options.get("keep_retention", False),
        overwrite=force,
        is_plan=plan,
        options=option_texts(option),
    )
    left_out: list[str] = []
    engine, [tree] = open_sources([whole_paths(listed(paths))], running, note=left_out.append)
    _check_page(html, tree.sources)
    with Rescue(None if to is None else os.fspath(to), asked, resume=resume) as job:
        done = engine.run(job, tree, running.get("progress"))
    done.notes[:0] = left_out
    if html is not None:
        _write_report(html, done, tree.sources)
    return done


def _write_report(html: Path, done: Report, sources: Iterable[str]) -> None:
    from rawlog.pages.results import report_page
    from rawlog.verbs.report import causes

    _write_page(html, report_page(done, causes(done.remaining, [done.target])), sources)


def _write_page(html: Path, page: str, sources: Iterable[str]) -> None:
    from rawlog.io.files import writing

    with writing(os.fspath(html), overwrite=True, sources=sources) as out:
        out.write(page.encode())


def _check_page(html: Path | None, sources: Iterable[str]) -> None:
    """OptionError if the page would be in a source: before anything is done."""
    from rawlog.io.output import refuse_nested

    if html is not None:
        refuse_nested(os.fspath(html), sources)


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
    from rawlog.reading.names import check_names
    from rawlog.verbs.rewrite import Rewriting

    engine, [tree] = open_sources([source], running)
    if "topic" in options:
        check_names(tree, RECORDS, Selection(topics=tuple(options["topic"].split(","))), note)
    path = os.fspath(target)
    with Rewriting(verb, path, options, overwrite=force, dry_run=dry_run, at_once=engine.at_once) as job:
        return engine.run(job, tree, running.get("progress"))


def open_sources(
    places: Sequence[Paths],
    running: Running,
    *,
    format: str | None = None,
    note: Note | None = None,
    must_know: bool = True,
) -> tuple[Engine, list[Tree]]:
    """The engine that a job over some places runs on, and a tree for each place, as `open_known` opens it. The door of every verb with an
    engine: on Spark local paths are absolute, because tasks may have another working directory.
    """
    trees = [open_known(listed(one), format=format, note=note, must_know=must_know) for one in places]
    engine = choose(sum(tree.size for tree in trees), **settings_of(running))
    if engine.name == "spark":
        trees = [open_tree(whole_paths(tree.roots), format=format) for tree in trees]
    return engine, trees


def settings_of(running: Running, known: Iterable[str] = ()) -> dict[str, Any]:
    """The options that choose an engine. TypeError for an option that is not known."""
    if extra := set(running) - {*Running.__annotations__, *known}:
        raise TypeError(f"unexpected keyword argument {min(extra)!r}")
    return {name: running.get(name) for name in ("engine", "master", "conf", "threads")}


def running_of(options: Mapping[str, Any], known: Iterable[str] = ()) -> Running:
    """The options of where a job runs. TypeError for an option that is not known."""
    settings_of(options, known)  # type: ignore[arg-type]
    return divided(options)[1]


def divided(given: Mapping[str, Any]) -> tuple[dict[str, Any], Running]:
    """Options of the selection, and of where the job runs."""
    running = {name: value for name, value in given.items() if name in Running.__annotations__}
    asked = {name: value for name, value in given.items() if name not in running}
    return asked, running  # type: ignore[return-value]


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)
