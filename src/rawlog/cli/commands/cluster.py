"""`rawlog cluster`: the cluster as the KRaft log tells it, at the end or at any moment before."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.cli.errors import DONE, FOUND, say
from rawlog.cli.grid import aligned
from rawlog.core.errors import AccessError, OptionError
from rawlog.core.text import counted, plain_time, printable

if TYPE_CHECKING:
    from rawlog.formats.kraft.store.replica import At, Replica
    from rawlog.formats.kraft.store.state import State
    from rawlog.reading.tree import Tree

SHOWN = 20


@click.command(
    epilog="Exit codes: 0 shown; 1 damage was met, or --diff found differences; 2 wrong usage; 3 nothing to read."
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="DIR...")
@click.option("--at-offset", type=click.IntRange(0), metavar="N", help="As it was once this offset had been applied.")
@click.option("--at-time", metavar="TIME", help="As it was at a time: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--log", "history", is_flag=True, help="What happened, record by record, as sentences.")
@click.option("--diff", "between", metavar="A..B", help="What changed between two offsets or times.")
@click.option(
    "--topic", multiple=True, metavar="GLOB", help="Only these topics, with their partitions; may be given again."
)
@options.show_secrets
@options.errors
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    at_offset: int | None,
    at_time: str | None,
    history: bool,
    between: str | None,
    topic: tuple[str, ...],
    show_secrets: bool,
    errors: str,
    as_json: bool,
) -> None:
    """Show the cluster whose metadata log is at or below DIR: brokers, topics, what is offline or out of sync, settings.

    The newest usable snapshot and the log are folded as a controller does it. Partitions on disk are held against what the
    cluster knows.
    """
    from rawlog.formats.kraft.paths import takes
    from rawlog.formats.kraft.store.replica import At, clusters
    from rawlog.formats.kraft.tables import TOPICS
    from rawlog.reading.names import check_names
    from rawlog.reading.select import Selection, parse_time
    from rawlog.reading.tree import open_tree

    if at_offset is not None and at_time is not None:
        raise OptionError("--at-offset and --at-time exclude one another")
    if history and between is not None:
        raise OptionError("--log and --diff exclude one another")
    tree = open_tree(list(paths))
    files = [file for file in tree if takes("kraft.topics", file)]
    found = clusters(files)
    if not found:
        raise AccessError(f"{', '.join(paths)}: no metadata log (__cluster_metadata-0) and no snapshot of one is here")
    check_names(
        tree,
        TOPICS,
        Selection(topics=topic, errors=errors),
        lambda text: say(text, "note"),
        may_come=history or between is not None or at_offset is not None or at_time is not None,
    )
    at = At(at_offset, None if at_time is None else parse_time(at_time))
    show = _Show(tree, at, topic, show_secrets, errors, as_json)
    for number, replica in enumerate(found):
        if number and not as_json:
            output.line()
        if errors != "raise":
            show.damage(replica)
        if history:
            show.history(replica)
        elif between is not None:
            show.difference(replica, between)
        else:
            show.overview(replica)
    output.flush()
    ctx.exit(show.code)


class _Show:
    """What is shown of every cluster that was found."""

    def __init__(self, tree: Tree, at: At, topics: tuple[str, ...], secrets: bool, errors: str, as_json: bool) -> None:
        self.tree, self.at, self.topics, self.secrets, self.errors, self.as_json = (
            tree,
            at,
            topics,
            secrets,
            errors,
            as_json,
        )
        self.code = DONE

    def takes(self, topic: str | None) -> bool:
        return not self.topics or (topic is not None and any(fnmatch.fnmatchcase(topic, glob) for glob in self.topics))

    def damage(self, replica: Replica) -> None:
        """Tell what is passed over; the exit code says that something was."""
        for number, text in enumerate(replica.damage()):
            self.code = FOUND
            if number < SHOWN:
                say(f"{text}, passed over", "note")

    # ------------------------------------------------------------------ overview

    def overview(self, replica: Replica) -> None:
        state = replica.fold(self.at, self.errors)
        for problem in state.problems[:SHOWN]:
            say(f"{replica.folder}: offset {problem.offset:,}: {problem.message}", "note")
        at_end = self.at.offset is None and self.at.time is None
        odd = self._odd(replica, state) if at_end else []
        head = self._head(replica, state)
        tables = {name: [row for row in rows if self._wanted(name, row)] for name, rows in self._rows(state).items()}
        if self.as_json:
            output.json_line({"table": "cluster", **head})
            for name, rows in tables.items():
                for row in rows:
                    output.json_line({"table": name, **_plain(row)})
            for one in odd:
                output.json_line({"table": one["kind"], **one})
            return
        self._print(head, tables, odd)

    def _rows(self, state: State) -> dict[str, list[dict[str, Any]]]:
        from rawlog.formats.kraft.store.fold import ROWS_OF

        return {name: list(rows(state, self.secrets)) for name, rows in ROWS_OF.items()}

    def _wanted(self, table: str, row: dict[str, Any]) -> bool:
        if not self.topics:
            return True
        if "topic" in row:
            return self.takes(row["topic"])
        return table == "configs" and row["resource_type"] == "topic" and self.takes(row["resource_name"])

    def _odd(self, replica: Replica, state: State) -> list[dict[str, Any]]:
        from dataclasses import asdict

        from rawlog.formats.kraft.store.disk import compare

        return [asdict(odd) for odd in compare(self.tree.files, state, replica.cluster_id) if self.takes(odd.topic)]

    def _head(self, replica: Replica, state: State) -> dict[str, Any]:
        from rawlog.formats.kraft.names import METADATA_VERSION
        from rawlog.formats.kraft.store.fold import level_text

        level = state.features.get(METADATA_VERSION)
        return {
            "cluster_id": replica.cluster_id,
            "path": replica.folder,
            "end_offset": state.end_offset,
            "epoch": state.epoch,
            "timestamp": _time(None if state.timestamp < 0 else state.timestamp * 1000),
            "leader": state.leader,
            "metadata_version": level,
            "release": None if level is None else level_text(METADATA_VERSION, level),
            "kraft_version": state.kraft_version,
            "brokers": len(state.brokers),
            "topics": len(state.topics),
            "partitions": sum(len(one.partitions) for one in state.topics.values()),
            "next_producer_id": state.next_producer_id,
            "records": state.records,
            "problems": len(state.problems),
            "open_transaction": state.open_transaction,
        }

    def _print(self, head: dict[str, Any], tables: dict[str, list[dict[str, Any]]], odd: list[dict[str, Any]]) -> None:
        title = f"cluster {head['cluster_id'] or head['path']}"
        output.line(output.style(printable(title), bold=True))
        release = head["release"] or "not set"
        quorum = ", ".join(f"{one['voter']}{' (leader)' if one['is_leader'] else ''}" for one in tables["voters"])
        output.line(
            f"  as of offset {head['end_offset'] - 1:,}, epoch {head['epoch']}, {head['timestamp'] or 'no time'}"
        )
        output.line(f"  metadata.version {head['metadata_version']} ({release}), controllers {quorum or 'unknown'}")
        if head["open_transaction"] is not None:
            output.line(f"  a metadata transaction is open from offset {head['open_transaction']:,} on: not shown")
        if not self.topics:
            self._brokers(tables["brokers"])
        self._topics(tables)
        self._partitions(tables["partitions"])
        _section("Strays: on disk, unknown to the cluster", [_odd_row(one) for one in odd if one["kind"] == "stray"])
        _section("Missing on disk", [_odd_row(one) for one in odd if one["kind"] == "missing"])
        _section(
            "Settings",
            [
                [row["resource_type"], row["resource_name"] or "(default)", row["name"], row["value"]]
                for row in tables["configs"]
            ],
        )
        if self.topics:
            return
        _section("Features", [[row["name"], str(row["level"]), row["meaning"] or ""] for row in tables["features"]])
        _section(
            "Users",
            [
                [row["name"], row["mechanism"], f"{row['iterations']:,} iterations", *self._secret(row)]
                for row in tables["users"]
            ],
        )
        _section("Quotas", [[_entity(row["entity"]), row["key"], f"{row['value']:,.12g}"] for row in tables["quotas"]])
        _section(
            "Access",
            [
                [row["permission"], row["principal"], row["host"], row["operation"], row["resource_type"],
                 row["resource_name"] + ("*" if row["pattern_type"] == "prefixed" else "")]
                for row in tables["acls"]
            ],
        )  # fmt: skip
        _section(
            "Tokens",
            [
                [row["token_id"], row["owner"], f"expires {_time(row['expiration_timestamp']) or 'never'}"]
                for row in tables["tokens"]
            ],
        )

    def _secret(self, row: dict[str, Any]) -> list[str]:
        return [f"{name} {row[name]}" for name in ("salt", "stored_key", "server_key")]

    def _brokers(self, rows: list[dict[str, Any]]) -> None:
        cells = []
        for row in rows:
            state = "fenced" if row["fenced"] else "shutting down" if row["in_controlled_shutdown"] else "live"
            shown = output.style(state, fg="green" if state == "live" else "red")
            places = ", ".join(f"{one['name']} {one['host']}:{one['port']}" for one in row["endpoints"])
            cells.append(
                [str(row["broker"]), shown, printable(places), printable(f"rack {row['rack']}" if row["rack"] else "")]
            )
        _section("Brokers", cells, safe=False)

    def _topics(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        cells = []
        for row in tables["topics"]:
            notes = [f"{row['offline']} offline"] if row["offline"] else []
            notes += [f"{row['under_replicated']} under-replicated"] if row["under_replicated"] else []
            partitions = counted(row["partitions"], "partition")
            cells.append(
                [row["topic"], partitions, f"x {row['replication_factor']}", ", ".join(notes), row["topic_id"]]
            )
        _section("Topics", cells)

    def _partitions(self, rows: list[dict[str, Any]]) -> None:
        def cells(row: dict[str, Any]) -> list[str]:
            leader = "no leader" if row["leader"] is None else f"leader {row['leader']}"
            elr = f"eligible {row['eligible_leader_replicas']}" if row["eligible_leader_replicas"] else ""
            return [
                f"{row['topic']}-{row['partition']}",
                leader,
                f"replicas {row['replicas']}",
                f"in sync {row['isr']}",
                elr,
            ]

        if self.topics:
            _section("Partitions", [cells(row) for row in rows])
            return
        _section("Offline partitions", [cells(row) for row in rows if row["leader"] is None], most=SHOWN)
        behind = [row for row in rows if row["leader"] is not None and _is_behind(row)]
        _section("Under-replicated partitions", [cells(row) for row in behind], most=SHOWN)

    # ------------------------------------------------------------------ history and differences

    def history(self, replica: Replica) -> None:
        from rawlog.formats.kraft.store.history import events

        for event in events(replica, errors=self.errors, show_secrets=self.secrets):
            if self.at.offset is not None and event.offset > self.at.offset:
                break
            if self.at.time is not None and event.timestamp is not None and event.timestamp > self.at.time:
                break
            if not self.takes(event.topic):
                continue
            row = {
                "offset": event.offset,
                "timestamp": _time(event.timestamp),
                "epoch": event.epoch,
                "leader": event.leader,
                "type": event.type,
                "topic": event.topic,
                "text": event.text,
            }
            if self.as_json:
                output.json_line(row)
            else:
                output.line(f"{event.offset:>10,}  {row['timestamp']}  {printable(event.text)}")

    def difference(self, replica: Replica, between: str) -> None:
        from rawlog.formats.kraft.store.history import differences

        first, second = _moments(between)
        before, after = replica.fold(first, self.errors), replica.fold(second, self.errors)
        for one in differences(before, after, show_secrets=self.secrets):
            row = one.after or one.before or {}
            if not self._wanted(one.table, row):
                continue
            self.code = FOUND
            if self.as_json:
                shown = {"table": one.table, "key": one.key, "change": one.change}
                both = {"before": one.before and _plain(one.before), "after": one.after and _plain(one.after)}
                output.json_line({**shown, **both})
                continue
            sign = {"added": "+", "removed": "-", "changed": "~"}[one.change]
            colour = {"added": "green", "removed": "red", "changed": "yellow"}[one.change]
            what = one.table.removesuffix("s") if one.table != "acls" else "acl"
            if one.change == "changed" and not one.fields and one.table == "topics":
                continue  # only its settings: they are told by themselves
            text = f"{sign} {what} {one.key}" + "".join(_told(one))
            output.line(output.style(printable(text), fg=colour))


def _told(one: Any) -> Iterator[str]:
    if one.change == "changed":
        yield ": " + ", ".join(f"{name} {old} -> {new}" for name, (old, new) in one.fields.items())
    elif one.table in ("configs", "quotas"):
        yield f" = {(one.after or one.before)['value']}"


def _moments(between: str) -> tuple[At, At]:
    first, dots, second = between.partition("..")
    if not dots or not first or not second:
        raise OptionError(f"--diff {between!r}: two offsets or times with .. between them expected")
    return _moment(first), _moment(second)


def _moment(text: str) -> At:
    """A number below 10^11 is an offset; all else is a time."""
    from rawlog.formats.kraft.store.replica import At
    from rawlog.reading.select import parse_time

    if text.isdecimal() and len(text) <= 11:
        return At(offset=int(text))
    return At(time=parse_time(text))


def _is_behind(row: dict[str, Any]) -> bool:
    return not set(row["replicas"]) - set(row["adding_replicas"]) <= set(row["isr"])


def _entity(entity: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['type']} {'(default)' if one['name'] is None else one['name']}" for one in entity)


def _odd_row(one: dict[str, Any]) -> list[str]:
    return [f"{one['topic']}-{one['partition']}", one["path"], one["why"]]


def _section(title: str, rows: list[list[str]], *, safe: bool = True, most: int | None = None) -> None:
    if not rows:
        return
    output.line(f"{title} ({len(rows):,})")
    shown = [[printable(cell) for cell in row] if safe else row for row in rows[:most]]
    for line in aligned(shown, indent="  "):
        output.line(line)
    if most is not None and len(rows) > most:
        output.line(f"  ... and {len(rows) - most:,} more; --topic GLOB or --json shows them")


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else plain_time(microseconds)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: times as text, settings as an object."""
    shown: dict[str, Any] = {
        name: _time(value) if name.endswith("_timestamp") else value for name, value in row.items()
    }
    if isinstance(shown.get("configs"), list):
        shown["configs"] = dict(shown["configs"])
    return shown
