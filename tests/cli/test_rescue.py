"""`rawlog rescue`: the plan for people and for machines, exit codes, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from rawlog.cli import cli
from tests.data.dead_cluster import Partition, damage, write_disks


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["rescue", *map(str, arguments)])


def disks_of(tmp_path: Path, *harmed: int) -> tuple[list[Path], Partition]:
    one = Partition(1)
    for _ in range(9):
        one.produce()
    disks = write_disks(tmp_path / "disks", {("orders", 0): one})
    for node in harmed:
        damage(disks[node] / "orders-0", one.history(), one.history()[4])
    return sorted(disks.values()), one


def test_the_plan_lists_replicas_choice_and_losses(tmp_path: Path) -> None:
    disks, one = disks_of(tmp_path, 1, 2, 3)
    done = run(*disks, "--plan")
    assert done.exit_code == 1, done.output
    chosen = one.history()[4]
    lost = f"offsets {chosen.base}" if chosen.count == 1 else f"offsets {chosen.base} to {chosen.end - 1}"
    assert lost in done.output
    assert "broker 1 led at death" in done.output
    assert "  lost offset" in done.output.partition("something would be lost or changed:")[2]
    assert all(str(disk) in done.output for disk in disks)
    assert not (tmp_path / "plan").exists()


def test_the_plan_for_machines_has_everything(tmp_path: Path) -> None:
    disks, one = disks_of(tmp_path, 1)
    done = run(*disks, "--plan", "--json")
    assert done.exit_code == 0, done.output
    [line] = done.output.splitlines()
    found = json.loads(line)
    assert found["dry_run"]
    [unit] = found["plan"]
    assert unit["name"] == "orders-0"
    assert len(unit["copies"]) == 3
    assert unit["copies"][0]["damage"][0]["start"] == one.history()[4].base
    assert unit["pieces"][0]["copy"] == 0
    assert len({piece["copy"] for piece in unit["pieces"]}) == 2
    assert unit["end"] == one.history()[-1].end


def test_a_run_reports_where_the_result_is(tmp_path: Path) -> None:
    disks, _ = disks_of(tmp_path, 2)
    done = run(*disks, "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "out") in done.output.splitlines()[-1]
    assert run(*disks, "--to", tmp_path / "out").exit_code == 3
    assert run(*disks, "--to", tmp_path / "out", "--force").exit_code == 0


def test_wrong_usage_ends_with_2(tmp_path: Path) -> None:
    disks, _ = disks_of(tmp_path)
    assert run(*disks).exit_code == 2
    assert run(*disks, "--to", disks[0] / "x").exit_code == 2
    assert run(*disks, "--plan", "--include", "everything").exit_code == 2
    assert run(*disks, "--plan", "--topic", "ordres").exit_code == 2
    assert run(tmp_path / "nowhere", "--plan").exit_code == 3
