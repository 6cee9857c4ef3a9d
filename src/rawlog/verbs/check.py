"""The functions that check, compare and rewrite: verify, rules, diff, repair, rebuild, compact."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

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
from rawlog.reading.inspect import Chosen
from rawlog.reading.names import check_names
from rawlog.reading.parts import choose as choose_replicas
from rawlog.reading.select import Selection, Transform
from rawlog.reading.tree import Tree, open_known, open_tree
from rawlog.verbs.options import (
    Comparing,
    Note,
    Path,
    Paths,
    Running,
    Time,
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


def verify(
    paths: Paths,
    *,
    rule: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    against: Path | None = None,
    certificate: Path | None = None,
    complete: bool = False,
    format: str | None = None,
    max_decompressed: int = MAX_DECOMPRESSED,
    max_headers: int = MAX_HEADERS,
    schemas: Path | None = None,
    html: Path | None = None,
    note: Note | None = None,
    **running: Unpack[Running],
) -> Findings:
    """Check every file at `paths`, and files that belong together. Returns Findings: iterate over it, or ask for its `verdict`.

    `rule` and `skip` are codes of rules, or what their codes begin with; `rawlog.rules()` lists them. `against` is a place with replicas
    to compare with. With `complete`, the `accounts` of the result have a class for every offset of each partition or queue, every blob of
    a store and every entry of a recording, and what nothing explains is a finding. `certificate` is that of the erasure whose result is at
    `paths`: it must be unchanged since, and have nothing that was to be erased; `schemas` is where the
    schemas come from, which must be named if the erasure decoded values. `html` is a file to write as a self-contained page.
    Damage is a finding and never raises. OptionError for an unknown rule, AccessError for a path that does not exist.

    >>> import rawlog
    >>> verdict = rawlog.verify("samples/kafka").verdict
    """
    from rawlog.reading.certificate import check as check_certificate
    from rawlog.reading.certificate import load as load_certificate
    from rawlog.reading.certificate import unread as certificate_unread
    from rawlog.verbs.diff import check_chosen
    from rawlog.verbs.verify import Verify

    chosen = check_chosen(Chosen(_texts(rule), _texts(skip), max_decompressed, max_headers, complete))
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
    from rawlog.verbs.diff import all_rules, check_chosen

    chosen = check_chosen(Chosen(_texts(rule), _texts(skip), complete=True))
    return [one for one in all_rules() if chosen.takes(one.code)]


def diff(
    a: Path,
    b: Path,
    *,
    limit: int = 1000,
    format: str | None = None,
    html: Path | None = None,
    note: Note | None = None,
    **selection: Unpack[Comparing],
) -> Differences:
    """What two places do not agree on. Returns Differences: iterate over it, or ask whether it `is_same`.

    Records are compared by topic, partition and offset, whatever their batches and compression; blobs one by one; clusters by their
    settings. `limit` differences are listed for each partition or store; all are counted. `html` is a file to write as a page.
    `notes` of the result, and `note`, say what was passed over with `errors`; `damage` has those notes that count.
    Raises DataError at damage unless `errors` says otherwise, OptionError for an unknown name, AccessError for a path that does not
    exist.

    >>> import rawlog
    >>> same = rawlog.diff("samples/kafka", "samples/kafka").is_same
    """
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


def repair(
    source: Path,
    target: Path,
    *,
    policy: str | None = None,
    dry_run: bool = False,
    quarantine: Path | None = None,
    move: bool = False,
    html: Path | None = None,
    option: Mapping[str, object] | None = None,
    force: bool = False,
    **running: Unpack[Running],
) -> Report:
    """Write a repaired copy of `source` to `target`: everything that is sound, so that the real system opens it. Returns a Report.

    `policy` is "salvage" (default: keep all that is sound), "broker" ("cut" for RocketMQ: what the real system itself would keep)
    or "strict" (refuse). Kafka: `quarantine` is a directory for what is cut. RocketMQ: `move` closes holes. With `dry_run` nothing
    is written. `html` is a file to write as a self-contained page. The source is never changed. AccessError if `target` exists and
    not `force`; OptionError if it is in the source.

    >>> import rawlog
    >>> report = rawlog.repair("samples/kafka/transactions-0", "out/repaired", dry_run=True)
    """
    own = option_texts(option, policy=policy, quarantine=_text(quarantine), move="true" if move else None)
    _check_page(html, [os.fspath(source)])
    done = rewrite("repair", source, target, own, force, None, running, dry_run=dry_run)
    if html is not None:
        _write_report(html, done, [os.fspath(source)])
    return done


def rebuild(
    source: Path,
    target: Path,
    *,
    option: Mapping[str, object] | None = None,
    force: bool = False,
    **running: Unpack[Running],
) -> Report:
    """Write a copy of `source` to `target` with every derived file rebuilt from the data. Returns a Report.

    Derived files are indexes, producer snapshots and epochs; consume queues and key index; index segments and bloom filters. Damaged
    data raises DataError: it is for `rawlog.repair`. Other errors as there.

    >>> import rawlog
    >>> report = rawlog.rebuild("samples/kafka/transactions-0", "out/rebuilt")
    """
    return rewrite("rebuild", source, target, option_texts(option), force, None, running)


def compact(
    source: Path,
    target: Path,
    *,
    topic: str | Sequence[str] | None = None,
    now: Time | None = None,
    memory: int | None = None,
    roll: bool = False,
    option: Mapping[str, object] | None = None,
    force: bool = False,
    note: Note | None = None,
    **running: Unpack[Running],
) -> Report:
    """Write a copy of `source` to `target` without what the real system's own compaction would drop. Returns a Report.

    `now` is the time to compare ages with. Kafka: only some topics; `memory` bytes for the map of keys; `roll` compacts the active
    segment too; `option` has a topic's settings under Kafka's names. Errors as `rawlog.repair`.

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


def rescue(
    paths: Paths,
    *,
    to: Path | None = None,
    plan: bool = False,
    topic: str | Sequence[str] = (),
    include: str | Iterable[str] = (),
    exclude_deleted: bool = False,
    brokers: int = 1,
    node_id: int = 1,
    cluster_id: str | None = None,
    metadata_version: str | int | None = None,
    keep_retention: bool = False,
    resume: bool = False,
    html: Path | None = None,
    option: Mapping[str, object] | None = None,
    force: bool = False,
    **running: Unpack[Running],
) -> Report:
    """Put the best union of the copies on the disks of one dead cluster into the directory `to`. Returns a Report.

    `paths` are log directories of brokers, or directories above them; some may be missing or damaged. `facts["plan"]` of the Report
    lists for each partition the replicas found, the choice and its reason, what is lost and what cannot be known; with `plan`
    nothing is written. `include` names states of directories to use that a broker does not load: "stray", "delete".
    `exclude_deleted` leaves out topics that are marked as deleted on some disks only. `resume` goes on with a run that was killed.
    `html` is a file to write as a self-contained page. OptionError for disks of several clusters or of a running broker; AccessError if
    `to` exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.rescue("samples/kafka", plan=True)
    """
    from rawlog.model.recovery import RescueAsked
    from rawlog.verbs.rescue import Rescue

    if to is None and not plan:
        raise OptionError("name the directory to write with --to, or ask for --plan")
    states = frozenset(_texts(include))
    if extra := states - set(INCLUDED):
        raise unknown("state", min(extra), INCLUDED)
    asked = RescueAsked(
        topics=_texts(topic),
        include=states,
        exclude_deleted=exclude_deleted,
        brokers=brokers,
        node=node_id,
        cluster_id=cluster_id,
        level=metadata_version,
        keep_retention=keep_retention,
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


def divided(given: Mapping[str, Any]) -> tuple[dict[str, Any], Running]:
    """Options of the selection, and of where the job runs."""
    running = {name: value for name, value in given.items() if name in Running.__annotations__}
    asked = {name: value for name, value in given.items() if name not in running}
    return asked, running  # type: ignore[return-value]


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)
