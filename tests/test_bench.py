"""The proof benchmark: what does not need a compiler."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

import benchmarks
import shardwright as sw
from benchmarks.__main__ import runnable
from benchmarks.baselines import automap, integer_program
from benchmarks.clock.one import compiled_before
from benchmarks.contenders import (
    CASES,
    CONTENDERS,
    Case,
    choose_cases,
    choose_contenders,
    environments,
    xla_auto,
    xla_result,
)
from benchmarks.contenders import run as run_module
from benchmarks.contenders.__main__ import main
from benchmarks.contenders.attempt import partition_given
from benchmarks.contenders.contender import OURS
from benchmarks.contenders.environments import AUTO, JUDGE, Environment
from benchmarks.contenders.match import Bound, Match, Work, matches, physical_bound, standing
from benchmarks.contenders.page import BEGIN, END, deciding, kept, losses, page_text, summary, tables, write_page
from benchmarks.contenders.rows import Rows, read_rows, row_key
from shardwright.devices import find_device
from shardwright.errors import CompilerMissingError, TargetError
from shardwright.models import build
from shardwright.price import CostModel, DevicePrices

GIB = 2**30
CASE = CASES["gpt v5e-16"]
XLA = "xla auto-sharding"
MADE = {"date": "2026-01-02 03:04", "machine": "a machine, 2 cores", "python": "3.11.7", "load": 1.5}


def row(case: Case, contender: str, step: float | None, **more):
    compiled = {"step_seconds": step, "comm_seconds": step / 4, "peak_bytes": 3 * GIB, "fits": True} if step else {}
    status = {"status": "compiled" if step else "time out"}
    return {"key": row_key(case, CONTENDERS[contender]), **status, **compiled, **MADE, **more}


@pytest.fixture
def found() -> list[Match]:
    ours = row(
        CASE, OURS, 0.4, flops=3.152e14, argument_bytes=8e9, search_seconds=5.0, search_cpu_seconds=4.0, plan="FSDP"
    )
    rows = [
        ours,
        row(CASE, "experts", 0.38, plan="fsdp:data + fsdp:model"),
        row(CASE, XLA, 0.6, search_seconds=100.0, search_cpu_seconds=90.0),
        row(CASE, "automap", None, message="it did not end within 60 s"),
    ]
    return matches(rows, tuple(CASES.values()))


# Cases and contenders.


def test_families_devices_and_limits_all_occur():
    cases = choose_cases()
    assert 12 <= len(cases) <= 20
    assert {case.model for case in cases} == {"mlp", "gpt", "itx", "moe", "vit", "gns", "unet"}
    assert {case.target.device.name for case in cases} == {"tpu-v3", "tpu-v5e", "tpu-v5p"}
    assert {bool(case.tight_gib) for case in cases} == {True, False}
    assert [case.name for case in choose_cases(quick=True)] == ["mlp v5e-16", "decode v5e-16"]
    assert all(case in cases for case in choose_cases(quick=True))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_cases_are_of_sizes_and_meshes_that_exist(case):
    fn, args, _ = case.build()
    assert callable(fn)
    assert jax.tree.leaves(args)
    case.target.check(math.prod(case.mesh.values()))
    assert Case.of(json.loads(json.dumps(case.to_dict()))) == replace(case, quick=False)


def test_what_is_asked_for_by_name():
    assert [case.name for case in choose_cases(["decode v5e"])] == ["decode v5e-16"]
    assert [case.name for case in choose_cases(["gpt v5e-16"])] == ["gpt v5e-16"]  # and not the tight one
    assert [c.name for c in choose_contenders(["automap"])] == [OURS, "automap"]
    with pytest.raises(TargetError, match="There is no case 'gemna'"):
        choose_cases(["gemna"])
    with pytest.raises(TargetError, match="There is no contender 'alpa'"):
        choose_contenders(["alpa"])


def test_all_are_judged_by_one_compiler():
    assert JUDGE.versions["libtpu"] == AUTO.versions["libtpu"]


def test_an_environment_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch):
    def refuse(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: no network\nERROR: no such version\n")

    monkeypatch.setattr(environments.subprocess, "run", refuse)
    with pytest.raises(CompilerMissingError) as raised:
        environments.prepare(Environment("other", ("jax==0.0.1",)), tmp_path)
    sentence = "the benchmark's environment 'other' (jax==0.0.1) could not be made: ERROR: no such version"
    assert str(raised.value) == sentence


def test_processes_load_the_libtpu_of_their_own_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/elsewhere/libtpu.so")  # as importing JAX sets it
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/elsewhere")
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    found = run_module.variables(tmp_path / "judge" / "bin" / "python")
    assert not {"TPU_LIBRARY_PATH", "XLA_FLAGS", "JAX_ENABLE_X64"} & found.keys()
    assert found["PYTHONPATH"] == str(tmp_path / "judge" / "source")
    assert found["PATH"] == os.environ["PATH"]


def test_plans_of_two_compilers_are_not_compared(tmp_path, monkeypatch):
    builds = iter(["built on Monday", "built on Tuesday"])
    monkeypatch.setattr(run_module, "attempt", lambda *_: {"status": "compiled", "fits": False})
    monkeypatch.setattr(run_module, "prepare", lambda *_: tmp_path / "judge" / "bin" / "python")
    monkeypatch.setattr(run_module, "compiler_build", lambda *_: next(builds))
    rows = Rows(tmp_path / "rows.jsonl")
    with pytest.raises(CompilerMissingError, match="'judge' and 'auto' have different TPU compilers"):
        run_module.run([CASE], choose_contenders([XLA]), rows, tmp_path, timeout=1.0, say=lambda _: None)
    assert [row["compiler"] for row in read_rows(rows.file)] == ["built on Monday"]


def test_what_xla_said_is_kept_for_the_same_question_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "SAID", tmp_path)
    folder = tmp_path / CASE.name.replace(" ", "_")
    folder.mkdir()
    (folder / "question.json").write_text('{"code": "a"}')
    (folder / "result.json").write_text("{}")
    assert run_module.said(CASE, {"code": "a"}) == folder
    assert (folder / "result.json").exists()
    assert run_module.said(CASE, {"code": "b"}) == folder
    assert not folder.exists()


def test_every_case_that_xla_was_asked_about_is_there_with_its_question():
    kept = [json.loads(file.read_text()) for file in run_module.SAID.glob("*/question.json")]
    assert len(kept) == len(list(run_module.SAID.iterdir())) >= 11
    assert {question["case"]["name"] for question in kept} <= CASES.keys()
    assert all(question["case"] == CASES[question["case"]["name"]].to_dict() for question in kept)


def test_an_environment_whose_compiler_does_not_start_is_one_sentence():
    with pytest.raises(CompilerMissingError, match="does not start: SystemError: no chip"):
        environments.compiler_build(Path(sys.executable), {"PYTHONSTARTUP": ""}, "raise SystemError('no chip')")
    assert environments.compiler_build(Path(sys.executable), {}, "print('a'); print('cl/1')") == "cl/1"


# Bounds.


def test_bounds_by_hand():
    device = find_device("tpu-v5e")  # 197 TFLOP/s and 819 GB/s
    assert physical_bound(Work(197e12 * 16, 0.0), device, 16) == Bound(1.0, "FLOPs")
    assert physical_bound(Work(197e12, 819e9 * 8), device, 4) == Bound(2.0, "bytes")


def test_work_of_a_product_by_hand():
    def fn(x, w):
        return x @ w

    args = (jax.ShapeDtypeStruct((8, 32), jnp.float32), jax.ShapeDtypeStruct((32, 16), jnp.float32))
    work = Work.of(sw.analyse(fn, *args).program)
    assert work == Work(2 * 8 * 32 * 16, 4 * (8 * 32 + 32 * 16))


# Shardings that others chose.


def test_baselines_shardings_cost_what_they_say_and_partition_the_program():
    fn, args, options = build("mlp")
    plan = sw.evaluate(fn, *args, mesh={"data": 2, "model": 2}, device="tpu-v5e", decisions=[], **options)
    mesh, places = plan.partitioned.mesh, plan.partitioned.places
    for search in (automap, integer_program):
        baseline = search(plan.costs, plan.memory_bytes)
        assert CostModel.of_shardings(places, mesh, plan.device, baseline.shardings) == baseline.cost
        partitioned = partition_given(places, mesh, baseline.shardings, DevicePrices.of(plan.device, mesh))
        assert list(partitioned.values) == list(baseline.shardings)
        assert any(axes for sharding in partitioned.values for axes in sharding)


# Rows.


def test_a_run_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    asked, said = [], []

    def attempt(_, contender, *__):
        asked.append(contender.name)
        if contender.name == "automap" and len(asked) == 3:
            raise KeyboardInterrupt
        return {"status": "compiled", "step_seconds": 1.0, "peak_bytes": GIB, "fits": True}

    monkeypatch.setattr(run_module, "attempt", attempt)
    monkeypatch.setattr(run_module, "prepare", lambda *_: Path("judge/bin/python"))
    monkeypatch.setattr(run_module, "compiler_build", lambda *_: "built on Monday")
    chosen, file = choose_contenders(["experts", "automap"]), tmp_path / "rows.jsonl"

    def go(**options):
        run_module.run([CASE], chosen, Rows(file), tmp_path, timeout=1.0, say=said.append, **options)

    with pytest.raises(KeyboardInterrupt):
        go()
    with file.open("a") as written:
        written.write('{"key": {"case"')  # a kill in the middle of a line
    go()
    assert asked == [OURS, "experts", "automap", "automap"]
    assert [r["key"]["contender"] for r in read_rows(file)] == [OURS, "experts", "automap"]
    assert said[-1] == "gpt v5e-16: automap: 1000.0 ms, 1.00 GiB"
    go()
    assert len(asked) == 4


def test_rows_of_other_settings_versions_or_limits_are_not_reused(tmp_path):
    rows, contender = Rows(tmp_path / "rows.jsonl"), CONTENDERS[XLA]
    key = row_key(CASE, contender)
    rows.add(key, {"status": "compiled"})
    assert rows.find(key)
    assert rows.find(row_key(replace(CASE, tight_gib=2), contender)) is None
    assert rows.find(row_key(replace(CASE, sizes={"layers": 2}), contender)) is None
    assert rows.find(row_key(CASE, replace(contender, options={"seconds": 2}))) is None
    newer = replace(contender, environment=Environment("auto", ("jax==0.10.1", "libtpu==0.0.40")))
    assert rows.find(row_key(CASE, newer)) is None
    assert rows.find(row_key(CASE, replace(contender, source=("errors.py",)))) is None


def test_failures_are_rows_and_are_run_again_only_when_asked(tmp_path, monkeypatch):
    asked = []

    def attempt(_, contender, *__):
        asked.append(contender.name)
        return {"status": "time out", "message": "it did not end within 1 s"}

    monkeypatch.setattr(run_module, "attempt", attempt)
    monkeypatch.setattr(run_module, "prepare", lambda *_: Path("judge/bin/python"))
    monkeypatch.setattr(run_module, "compiler_build", lambda *_: "built on Monday")
    file, said = tmp_path / "rows.jsonl", []
    for retry in (False, False, True):
        chosen = choose_contenders(["automap"])
        run_module.run([CASE], chosen, Rows(file), tmp_path, timeout=1.0, say=said.append, retry=retry)
    assert asked == [OURS, "automap"] * 2
    assert said[1] == f"{CASE.name}: shardwright: time out: it did not end within 1 s"


def test_xla_results_are_read_as_ours_are():
    hlo = """HloModule jit_f, num_partitions=16

ENTRY %main (p: bf16[1024]) -> bf16[4096] {
  %p = bf16[1024]{0} parameter(0)
  ROOT %ag = bf16[4096]{0} all-gather(%p), replica_groups=[4,4]<=[16], backend_config={"estimated_cycles":"1500000"}
}
"""
    memory = {
        "argument_bytes": 1,
        "output_bytes": 1,
        "alias_bytes": 0,
        "temp_bytes": 3 * GIB,
        "generated_code_bytes": 0,
    }
    times = {"auto_seconds": 100.0, "again_seconds": 40.0, "auto_cpu_seconds": 150.0, "again_cpu_seconds": 60.0}
    found = xla_result.read_xla({**times, "memory": {**memory, "peak_bytes": GIB}}, hlo, "", replace(CASE, tight_gib=2))
    assert (found["search_seconds"], found["search_cpu_seconds"]) == (60.0, 90.0)
    assert found["compute_seconds"] == 1e-3  # 1.5 million cycles at 1.5 GHz
    assert found["comm_seconds"] > 0
    assert found["fits"]
    more = {**times, "memory": {**memory, "peak_bytes": 2 * GIB + 1}}
    assert not xla_result.read_xla(more, hlo, "", replace(CASE, tight_gib=2))["fits"]
    error = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.00G of 15.75G hbm."
    found = xla_result.read_xla({"auto_seconds": 9.0, "error": error}, "", "", CASE)
    assert (found["status"], found["peak_bytes"], found["fits"]) == ("does not fit", 20 * GIB, False)
    begin, end = (
        "W1116 23:59:58.500 1 tpu_spmd_partitioner.cc:4] a",
        "W1117 00:00:08.750 1 sharding_propagation.cc:3] b",
    )
    log = f"{begin}\n{end}\n{end.replace('08', '59')}\n"
    assert xla_result.logged(log) == (86398.5, 8.75)
    samples = [(86397.5, 2.0), (86399.5, 4.0), (0.75, 5.0), (10.75, 25.0)]  # past midnight; 2, 0.8 and 2 a second
    assert xla_result.sampled(samples, 86398.5, 8.75) == pytest.approx(21.0 - 3.0)
    found = xla_result.read_xla({**times, "cpu_samples": samples, "error": error}, "", log, CASE)
    assert (found["search_seconds"], found["search_cpu_seconds"]) == (10.25, pytest.approx(18.0))
    assert xla_result.logged(begin) is None
    complaint = "W1 2 3 auto_sharding_impl_internal.cc:211] Only a non-optimal solution. Please report.\n"
    assert xla_result.solver_words(2 * complaint) == ["Only a non-optimal solution"]
    assert xla_result.in_brief(["P()", "P('data',)", "P('data',)"]) == "2 × P('data',), 1 × P()"
    assert xla_result.read_xla({"error": "INTERNAL: no\nat line 3"}, "", "", CASE)["message"] == "INTERNAL: no"


# Tables.


def test_the_table_of_a_case(found):
    expected = """\
### gpt v5e-16

`gpt` on `tpu:v5e:4x4`, mesh data 4 × model 4; 15.75 GiB a device; physical limit 100.0 ms (FLOPs).

| contender | step, ms | × ours | comm, exposed | of the limit | GiB | fits | to decide, s | CPU s | what |
|---|---|---|---|---|---|---|---|---|---|
| **shardwright** | 400.0 | 1.000 | 100.0 | 25% | 3.00 | yes | 5.00 | 4.00 | FSDP |
| experts | 380.0 | 0.950 | 95.0 | 26% | 3.00 | yes |  |  | fsdp:data + fsdp:model |
| xla auto-sharding | 600.0 | 1.500 | 150.0 | 17% | 3.00 | yes | 100.0 | 90.0 |  |
| automap | – |  |  |  | – | no |  |  | time out: it did not end within 60 s |
"""
    assert "\n".join(tables(found)) == expected


def test_the_summary_and_where_we_lose(found):
    assert summary(found)[2:] == [
        "| experts | 1 | 0 | 0 | 0.950 | 0.950 | 0.950 |  |  |",
        "| xla auto-sharding | 1 | 1 | 0 | 1.500 | 1.500 | 1.500 | 20.0 | 20.0 |",
        "| automap | 1 | 1 | 1 |  |  |  |  |  |",
        "",
    ]
    assert losses(found) == ["- gpt v5e-16: ours is 5.3% slower than experts"]
    (match,) = matches([row(CASE, OURS, 0.2, search_seconds=5.0), row(CASE, XLA, 0.3, search_seconds=4.0)], [CASE])
    assert losses([match]) == ["- gpt v5e-16: xla auto-sharding decides in 4.0 s, ours in 5.0 s"]
    assert standing(found, "experts").no_worse == 0


def test_the_time_to_decide_with_and_without_what_jax_takes(found):
    assert deciding(found)[2:] == ["| gpt v5e-16 | 5.00 |  | 100.0 | 20.0 |  | 22.5 |", ""]
    rows = [row(CASE, OURS, 0.2, search_seconds=5.0, lowering_seconds=1.0), row(CASE, XLA, 0.3, search_seconds=100.0)]
    assert deciding(matches(rows, [CASE]))[2] == "| gpt v5e-16 | 5.00 | 1.00 | 100.0 | 20.0 | 25.0 |  |"
    assert deciding(matches(rows[:1], [CASE])) == []


def test_rows_of_a_case_that_has_changed_are_not_shown():
    old = row(replace(CASE, sizes={"layers": 2}), OURS, 0.1)
    assert matches([old], [CASE]) == []
    (match,) = matches([row(CASE, OURS, 0.2), old, row(CASE, OURS, 0.3)], [CASE])
    assert match.step(OURS) == 0.3


def test_a_plan_of_ours_that_does_not_fit_loses_to_one_that_does():
    rows = [row(CASE, OURS, 0.1, fits=False), row(CASE, "experts", 0.5)]
    (match,) = matches(rows, [CASE])
    assert losses([match]) == ["- gpt v5e-16: experts has a plan that fits, ours does not"]
    assert (standing([match], "experts").compared, standing([match], "experts").no_worse) == (1, 0)


def test_the_page_keeps_what_was_written_by_hand(found, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "contenders.md"
    write_page(found, page)
    text = page.read_text()
    assert "Made 2026-01-02 03:04 to 2026-01-02 03:04 UTC on a machine, 2 cores, Python 3.11.7, with " in text
    assert (tmp_path / "contenders.svg").read_text().startswith("<?xml")
    before, _, after = text.partition(kept(text))
    page.write_text(f"{before}Because of the weather.{after}")
    write_page(found, page)
    assert f"{BEGIN}\n\nBecause of the weather.\n\n{END}" in page.read_text()
    assert page.read_text() == page_text(found, "Because of the weather.", "contenders.svg")


# The command.


def test_the_command_lists_and_shows_rows(tmp_path):
    runner = CliRunner()
    listed = runner.invoke(main, ["--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in [*CASES, *CONTENDERS])
    file = tmp_path / "rows.jsonl"
    empty = runner.invoke(main, ["--no-run", "--rows", str(file)])
    assert (empty.exit_code, "has no rows yet" in empty.output) == (2, True)
    file.write_text(json.dumps(row(CASE, OURS, 0.4)) + "\n")
    shown = runner.invoke(main, ["--no-run", "--rows", str(file)])
    assert "| **shardwright** | 400.0 |" in shown.output
    assert runner.invoke(main, ["--only", "nothing"]).exit_code == 2
    same = runner.invoke(main, ["--no-run", "--write", "x.svg"])
    assert (same.exit_code, "--write and its plot would both write to x.svg" in same.output) == (2, True)
    read = runner.invoke(main, ["--no-run", "--rows", "x", "--write", "./x"])
    assert (read.exit_code, "overwrite x, which --rows is read from" in read.output) == (2, True)
    assert runner.invoke(main, ["--contenders", "nothing", "--quick"]).exit_code == 2
    assert runner.invoke(main, ["--timeout", "0"]).exit_code == 2


def test_processes_of_contenders_find_what_they_run(tmp_path):
    """In an environment's folder with links to both packages, and nothing else of ours."""
    environments.link_packages(tmp_path / "source")
    variables = {**environments.child_variables(tmp_path), "JAX_PLATFORMS": "cpu"}
    (tmp_path / "task.json").write_text("{}")
    command = [sys.executable, "-P", "-m", "benchmarks.contenders.attempt", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True)
    assert json.loads((tmp_path / "result.json").read_text()) == {"status": "failed", "message": "KeyError: 'case'"}
    of_xla = [
        f"import runpy, sys; program = runpy.run_path({xla_auto.__file__!r})['program']",
        f"fn, args, donate = program({CASE.to_dict()!r})",
        "assert callable(fn) and 'shardwright.partition' not in sys.modules",
    ]
    subprocess.run([sys.executable, "-P", "-c", "\n".join(of_xla)], cwd=tmp_path, env=variables, check=True)


def test_the_list_of_benchmarks_names_each():
    named = [command for command, _ in runnable()]
    assert {"python -m benchmarks.contenders", "python -m benchmarks.search"} < set(named)
    assert all(summary.endswith((".", "?")) for _, summary in runnable())
    folder = Path(benchmarks.__file__).parent
    modules = [command.split()[-1].removesuffix(".py").replace("/", ".") for command in named]
    places = [folder.parent.joinpath(*module.split(".")) for module in modules]
    assert all(place.with_suffix(".py").exists() or (place / "__main__.py").exists() for place in places)


def test_what_was_compiled_for_the_clock_counts_only_for_the_code_that_read_it(tmp_path):
    rows = [
        {"key": "a", "reader": "this", "compiled": {"step_seconds": 1.0}},
        {"key": "b", "reader": "another", "compiled": {"step_seconds": 2.0}},
        {"key": "c", "reader": "this", "compiled": {}},
        {"key": "d", "reader": "this", "compiled": {"crash": "SIGSEGV"}},
        {"subject": "e", "unable": "nothing fits"},
    ]
    file = tmp_path / "clock.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compiled_before(file, "this") == {"a": {"step_seconds": 1.0}}
    assert compiled_before(tmp_path / "none.jsonl", "this") == {}
