"""Benchmarks still run: every script of benchmarks/ to its end with tiny data, and what it writes is whole."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import needed
from tests.services import Unavailable
from tests.services.jars import class_path, java

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
#: Scripts, what their work or their peers need, and the sets of jars.
SCRIPTS = {
    "ambry_decode": (None, ()),
    "ambry_fold": (None, ()),
    "browse": ("slow", ()),
    "decode_values": (None, ()),
    "ingest": ("spark", ("kafka-4.3.0",)),
    "kafka_compact": ("broker", ("kafka-3.9.2",)),
    "kafka_decode": ("slow", ("kafka-3.9.2",)),
    "kafka_encode": ("broker", ("kafka-3.9.2",)),
    "kafka_restore": ("broker", ("kafka-3.9.2",)),
    "kraft_fold": ("slow", ("kafka-4.3.0",)),
    "live": ("broker", ("kafka-4.3.0",)),
    "local_engine": (None, ()),
    "plan": ("spark", ()),
    "rocketmq_decode": ("broker", ("rocketmq-5.3.3",)),
    "spark_count": ("spark", ()),
}
#: Peers that only some machines have: a Go compiler, Spark's connector in an environment of its own.
RARE = ("kafka-replay", "kafka-go loop", "Spark's Kafka connector")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


harness = load("harness")


def marked(name: str) -> object:
    mark = SCRIPTS[name][0]
    return pytest.param(name, marks=[getattr(pytest.mark, mark)] if mark else [])


def test_every_script_is_run_here() -> None:
    """Two scripts once named what had moved, and nobody saw it: they were run by hand only."""
    assert [script.stem for script in harness.scripts()] == sorted(SCRIPTS)
    assert all((FOLDER / tool).exists() for tool in harness.TOOLS)


@pytest.mark.timeout(0)  # a starved machine takes long for a JVM
@pytest.mark.parametrize("name", [marked(name) for name in SCRIPTS])
def test_a_script_runs_to_its_end_with_tiny_data(name: str, tmp_path: Path) -> None:
    _, jars = SCRIPTS[name]
    with needed():
        for needs in jars:
            java()
            class_path(needs)
    file = tmp_path / "bench.json"
    command = [sys.executable, FOLDER / f"{name}.py", "--tiny", "--json", file, "--dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    written = json.loads(file.read_text())
    assert set(written) == {"machine", "cases"}
    for result in written["cases"]:
        harness.check_shape(result)
        assert result["script"] == name
        for peer, reason in result["missing"].items():
            if not peer.startswith(RARE):
                with needed():
                    raise Unavailable(f"{peer}: {reason}")
    assert not [path for path in tmp_path.iterdir() if path != file], "a case leaves its data behind"


# Instructions ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_hot_kernels_execute_as_many_instructions_as_before(tmp_path: Path) -> None:
    """Counts are the same on every machine, so a kernel that became slower by mistake is seen where times say nothing."""
    command = [sys.executable, FOLDER / "counts.py", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.startswith("nothing to compare with"):
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_a_kernel_that_executes_more_or_fewer_instructions_is_named() -> None:
    counts = load("counts")
    before = {"work": {"same": 1000, "slower": 1000, "quicker": 1000, "gone": 10}}
    now = {"work": {"same": 1019, "slower": 1500, "quicker": 500, "new": 10}}
    lines = counts.differences(now, before)
    assert [line.split(": ")[1] for line in lines] == ["gone", "new", "quicker", "slower"]
    assert lines[-1] == "work: slower: 1,500 instructions, 1,000 in counts.json (1.50 times)"


def test_each_block_counts_its_instructions() -> None:
    """Compiled and run: a loop of ten rounds executes its block ten times."""
    llvm = pytest.importorskip("llvmlite.binding")
    counts = load("counts")
    code = """
define i64 @sum(i64 %n) memory(none) {
entry:
  br label %loop

loop:                                             ; preds = %loop, %entry
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %total = phi i64 [ 0, %entry ], [ %more, %loop ]
  %more = add i64 %total, %i
  %next = add i64 %i, 1
  %last = icmp eq i64 %next, %n
  br i1 %last, label %exit, label %loop

exit:                                             ; preds = %loop
  switch i64 %more, label %other [
    i64 0, label %other
    i64 1, label %other
  ]

other:                                            ; preds = %exit, %exit, %exit
  ret i64 %more
}
"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(counts.counted(code))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine()
    with llvm.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("sum"))
        counter = ctypes.c_int64.from_address(engine.get_global_value_address(counts.COUNTER))
        assert run(10) == 45
        assert counter.value == 1 + 10 * 4 + 1 + 1


# The harness itself ----------------------------------------------------------------------------------------------------------


def run_case(body: object, *arguments: str) -> dict[str, object]:
    declared = harness.Case("script", "a case", "It does something.", 8, 2, "MB", "records", 3, True, body)
    options = {"tiny": False, "size": None, "rounds": None, "no_peers": False, "dir": None}
    options |= dict.fromkeys(arguments, True)
    result: dict[str, object] = harness.measure(declared, type("Options", (), options)())
    return result


def three_ways(bench: object) -> object:
    bench.rows, bench.bytes = bench.size * 10, 1_000  # type: ignore[attr-defined]
    rows = bench.rows  # type: ignore[attr-defined]
    yield harness.Work("work", lambda: harness.Run(rows, cpu=2.0, wall=1.0))
    yield harness.Peer("slow", lambda: harness.Run(rows // 10, cpu=1.0, wall=1.0), rows=rows // 10)
    yield harness.Limit("limit", lambda: harness.Run(rows, cpu=1.0, wall=0.5, memory_mb=7.0))


def test_ratios_are_of_the_time_for_a_row() -> None:
    """A peer that takes half the time for a tenth of the rows takes five times as long."""
    result = run_case(three_ways)
    harness.check_shape(result)
    assert [(ratio["to"], ratio["cpu"], ratio["wall"]) for ratio in result["ratios"]] == [
        ("slow", 5.0, 10.0),
        ("limit", 0.5, 0.5),
    ]
    assert [way.get("memory_mb") for way in result["ways"]] == [None, None, 7.0]


def test_a_way_that_does_other_rows_is_refused() -> None:
    def body(bench: object) -> object:
        bench.rows = bench.bytes = 10  # type: ignore[attr-defined]
        yield harness.Work("work", lambda: 10)
        yield harness.Peer("peer", lambda: 9)

    with pytest.raises(harness.WrongRows, match="peer did 9 records, not 10"):
        run_case(body)


def test_a_peer_that_is_not_there_is_named() -> None:
    def start() -> object:
        raise harness.Unavailable("no Java")

    def body(bench: object) -> object:
        yield from three_ways(bench)
        yield harness.Peer("missing", start=start)

    result = run_case(body)
    assert result["missing"] == {"missing": "no Java"}
    assert len(result["ways"]) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda result: result.pop("bytes"),
        lambda result: result.update(rows=0),
        lambda result: result["ways"].pop(0),
        lambda result: result["ways"].pop(),
        lambda result: result["ways"][0]["cpu"].update(best_s=0.0),
        lambda result: result["ratios"][0].update(wall=-1.0),
        lambda result: result.update(about="no sentence"),
    ],
)
def test_a_result_that_is_not_whole_is_refused(spoil: object) -> None:
    result = copy.deepcopy(run_case(three_ways))
    harness.check_shape(result)
    spoil(result)  # type: ignore[operator]
    with pytest.raises((AssertionError, KeyError)):
        harness.check_shape(result)


def test_results_of_a_case_replace_its_former_ones(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "bench.json"
    first, other = run_case(three_ways), run_case(three_ways)
    other["case"] = "another case"
    harness.save(file, [first])
    harness.save(file, [other])
    second = run_case(three_ways, "tiny")
    harness.save(file, [second])
    assert json.loads(file.read_text())["cases"] == [second, other]
