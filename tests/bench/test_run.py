"""The whole harness on tiny layers with whatever peers are installed. Nothing here depends on how fast anything is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unstride.bench.ours as ours
from unstride.bench import main
from unstride.bench.bystanders import Bystanders
from unstride.bench.case import Case, judge, make_case
from unstride.bench.contender import Prepared, Unsupported
from unstride.bench.layers import Layer
from unstride.bench.limits import Limits, fma_ir
from unstride.bench.measure import Effort, measure_layer
from unstride.bench.peers import DEFAULT_PEERS, PEERS, installed
from unstride.plan.machine import AVX2, NEON
from unstride.problem import Problem
from unstride.runtime.engine import assembly

FAST = ["--quick", "--rounds", "2", "--threads", "1"]
SCATTER = "scatter f32 NCX GIOX n1 g1 i4 o3 x5x4 k4x4 s2x2 d1x1 b1x1 y10x8"
# windows that engines with symmetric padding, or with output_padding below the stride, find hard
WINDOWS = [
    SCATTER,
    "scatter f32 NCX GIOX n2 g1 i4 o3 x5 k4 s2 d1 b0 y8",
    "scatter f32 NCX GIOX n2 g1 i4 o3 x5 k4 s2 d1 b3 y9",
    "scatter f32 NCX GIOX n1 g2 i2 o3 x5x6 k3x3 s2x2 d1x1 b1x0 y11x12",
    "scatter f32 NCX GIOX n1 g4 i1 o1 x3x3x3 k3x3x3 s2x1x2 d1x2x1 b1x1x1 y6x5x6",
    "scatter f32 NCX GIOX n1 g1 i2 o2 x4 k3 s2 d2 b4 y8",
]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*FAST, "--json", *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("direction", ["scatter", "gather"])
@pytest.mark.parametrize("line", WINDOWS)
def test_every_contender_agrees_with_the_definition(line: str, direction: str, layout: str) -> None:
    text = line.replace("scatter", direction).replace("NCX GIOX", "NCX GIOX" if layout == "NCX" else "NXC XGIO")
    case = make_case(Problem.parse(text), 1)
    results = {}
    contenders = [peer for name in installed(DEFAULT_PEERS) for peer in PEERS[name]]
    for contender in (ours.Unstride(), *contenders):
        if layout in contender.layouts:
            try:
                results[contender.name] = contender.prepare(case).result()
            except Unsupported:
                assert contender.name != ours.OURS
    verdicts = judge(case, results)
    assert ours.OURS in verdicts
    assert {name: verdict.wrong for name, verdict in verdicts.items()} == dict.fromkeys(verdicts, "")


def test_a_run_is_saved_reported_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save, picture = tmp_path / "run.jsonl", tmp_path / "run.svg"
    document = run_json(capsys, "--problem", SCATTER, "--layout", "both", "--save", str(save), "--svg", str(picture))
    assert {row["variant"] for row in document["layers"]} == {"scatter f32 NCX", "scatter f32 NXC"}
    for row in document["results"]:
        outcome = row["outcomes"]["unstride"]
        assert outcome["status"] == "timed"
        assert 0 < outcome["min_seconds"] <= outcome["median_seconds"]
        assert row["fma_flops_per_second"] > 0
        timed = {name for name, other in row["outcomes"].items() if other["status"] == "timed"}
        assert timed >= {"unstride"} | ({"torch"} & set(installed(("torch",))))
    assert picture.read_text().startswith("<svg")
    assert len(save.read_text().splitlines()) == 3
    assert main(["--report", str(save)]) == 0
    assert "problem/0" in capsys.readouterr().out


def test_resume_measures_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = str(tmp_path / "run.jsonl")
    arguments = ["--peers", "none", "--problem", SCATTER, "--save", save, "--resume"]
    first = run_json(capsys, *arguments)
    both = run_json(capsys, *arguments, "--layout", "both")
    assert both["results"][0] == first["results"][0]
    assert len(both["results"]) == 2


def test_our_wrong_result_is_not_timed_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ours.Unstride.prepare

    def planted(self: ours.Unstride, case: Any) -> Any:
        prepared = honest(self, case)

        def result() -> Any:
            values = prepared.result()
            values.flat[np.random.default_rng().integers(values.size)] += 1
            return values

        return ours.Prepared(prepared.call, result)

    monkeypatch.setattr(ours.Unstride, "prepare", planted)
    peer = next(iter(installed(DEFAULT_PEERS)), None)
    if peer is None:
        pytest.skip("needs a peer to find an arbitrary wrong element")
    arguments = ["--problem", SCATTER, "--peers", peer, "--save", str(tmp_path / "run.jsonl")]
    assert main([*FAST, *arguments]) == 1
    assert "wrong: at [" in capsys.readouterr().out


def test_a_model_file_gives_its_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    weights = onnx.numpy_helper.from_array(np.ones((4, 3, 4, 4), np.float32), "w")
    node = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2, 2], pads=[1, 1, 1, 1])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 5, 4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weights])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)]), tmp_path / "m.onnx")
    assert main(["--list", "--layout", "ncx", str(tmp_path / "m.onnx")]) == 0
    assert capsys.readouterr().out.split("  # ") == [SCATTER, "m.onnx/up\n"]


def test_list_shows_the_selection_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--layout", "nxc", "--direction", "gather", "--dtype", "f16,bf16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines)) == 120
    assert all(line.startswith(("gather f16 NXC", "gather bf16 NXC")) for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--threads", "0"],
        ["--budget", "nan"],
        ["--peers", "nobody"],
        ["--dtype", "f8"],
        ["--filter", "("],
        ["--filter", "no layer has such a name"],
        ["--problem", "gibberish"],
        ["--report", "no/such/file"],
        ["no-such-model.onnx"],
    ],
)
def test_bad_input_is_one_line_and_exit_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_the_fma_loop_holds_every_accumulator_in_a_register() -> None:
    for isa, mnemonic in ((AVX2, "vfmadd"), (NEON, "fmla")):
        lines = assembly(fma_ir(isa, 4), isa).splitlines()
        found = sum(mnemonic in line or "fmad" in line for line in lines)
        assert found == (12 if isa is AVX2 else 24)


def test_bystanders_see_another_process() -> None:
    counter = Bystanders()
    code = "import time; end = time.perf_counter() + 0.4\nwhile time.perf_counter() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    share = counter.share()
    if share is None:
        pytest.skip("the system does not tell")
    assert 0.5 / (os.cpu_count() or 1) < share <= 1


class Sluggard:
    """A contender that counts its calls and takes its time over each."""

    name = "sluggard"
    layouts = ("NCX",)

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def prepare(self, case: Case) -> Prepared:
        right = ours.Unstride().prepare(case)

        def call() -> None:
            self.calls += 1
            time.sleep(self.seconds)

        return Prepared(call, lambda: (call(), right.result())[1])


@pytest.mark.parametrize(("seconds", "interleaved"), [(0.0, True), (0.55, False)])
def test_a_contender_too_slow_for_rounds_is_timed_once_and_says_so(seconds: float, interleaved: bool) -> None:
    sluggard = Sluggard(seconds)
    limits = Limits(1)
    effort = Effort(rounds=2, block_seconds=0.002, layer_seconds=3.0)
    result = measure_layer(Layer("tiny", Problem.parse(SCATTER)), [ours.Unstride(), sluggard], limits, effort)
    limits.close()
    outcome = result.outcomes["sluggard"]
    assert outcome.status == "timed"
    assert outcome.min_seconds >= seconds
    assert ("not interleaved" in outcome.note) == (not interleaved)
    assert (sluggard.calls == 3) == (not interleaved)


def test_limits_are_positive_and_small_copies_are_not_judged() -> None:
    limits = Limits(2)
    try:
        assert limits.fma_flops_per_second(4) > 1e8
        assert limits.fma_flops_per_second(8) > 1e8
        assert limits.copy_bytes_per_second(1000) is None
        assert (limits.copy_bytes_per_second(2_000_000) or 0) > 1e7
        assert (limits.copy_bytes_per_second() or 0) > 1e7
    finally:
        limits.close()
