"""Ratio arithmetic, tables, picture and saved files, from times made up here."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from unstride.bench.measure import Effort, LayerResult, Outcome, plan_rounds
from unstride.bench.plot import speedup_svg
from unstride.bench.records import Run, last_run, open_run
from unstride.bench.report import as_json, plain_table, print_change, print_report
from unstride.bench.summary import compare, geometric_mean, group_rows, make_row, share_at_least
from unstride.errors import FormatError

LINE = "scatter f32 NCX GIOX n1 g1 i64 o32 x8x8 k2x2 s2x2 d1x1 b0x0 y16x16"
FLOPS = 2 * 64 * 32 * 64 * 4


def timed(seconds: float, median: float = 0.0) -> Outcome:
    return Outcome("timed", min_seconds=seconds, median_seconds=median or seconds, first_result_seconds=0.25)


def result(name: str = "a", line: str = LINE, **outcomes: Outcome) -> LayerResult:
    return LayerResult(name, line, 2, 5, 4e11, 5e10, 0.3, outcomes, 2e10)


def test_speedup_is_peer_time_over_our_time_and_the_best_peer_is_the_fastest() -> None:
    row = make_row(result(unstride=timed(2e-3, 4e-3), torch=timed(3e-3, 3e-3), openvino=timed(8e-3, 10e-3)))
    assert row.speedup == pytest.approx({"torch": 1.5, "openvino": 4.0})
    assert (row.best_peer, row.best) == ("torch", pytest.approx(1.5))
    assert row.best_by_median == pytest.approx(0.75)
    assert row.gflops["unstride"] == pytest.approx(FLOPS / 2e-3 / 1e9)
    assert row.fma_percent == pytest.approx(100 * FLOPS / 2e-3 / 4e11)
    bytes_moved = 4 * (64 * 64 + 64 * 32 * 4 + 32 * 256)
    assert row.copy_percent == pytest.approx(100 * bytes_moved / 5e10 / 2e-3)
    assert row.large_copy_percent == pytest.approx(100 * bytes_moved / 2e10 / 2e-3)
    assert row.first_result_ms["unstride"] == pytest.approx(250)


def test_peers_alone_have_speeds_but_no_speedup() -> None:
    row = make_row(result(torch=timed(3e-3), jax=Outcome("unsupported", "f64 only")))
    assert (row.best, row.best_peer, row.speedup, row.fma_percent) == (None, None, {}, None)
    assert row.trouble == {"jax": "unsupported: f64 only"}
    assert group_rows([row]) == []


def test_a_wrong_peer_is_no_rival() -> None:
    wrong = Outcome("wrong", "at [0]: 1, expected 2", min_seconds=0.0)
    row = make_row(result(unstride=timed(2e-3), torch=wrong, openvino=timed(4e-3)))
    assert row.best_peer == "openvino"
    assert row.trouble == {"torch": "wrong: at [0]: 1, expected 2"}


def test_geometric_mean_and_share() -> None:
    assert geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    assert geometric_mean([4.0]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="nothing"):
        geometric_mean([])
    assert share_at_least([0.99, 1.0, 1.5, 0.2], 1.0) == 0.5


def test_groups_count_each_layer_once_in_all_and_once_in_each_family() -> None:
    rows = [
        make_row(result("a", unstride=timed(1.0), torch=timed(2.0))),
        make_row(result("b", LINE.replace("n1", "n2"), unstride=timed(1.0), torch=timed(0.5), openvino=timed(8.0))),
        make_row(result("c", LINE.replace("NCX GIOX", "NXC XGIO"), unstride=timed(1.0), torch=timed(4.0))),
    ]
    groups = {(group.variant, group.name): group for group in group_rows(rows)}
    everything = groups["scatter f32 NCX", "all"]
    assert everything.count == 2
    assert everything.best == pytest.approx(1.0)
    assert (everything.share_ahead, everything.worst) == (0.5, 0.5)
    assert everything.against == pytest.approx({"torch": 1.0, "openvino": 8.0})
    assert groups["scatter f32 NXC", "all"].best == pytest.approx(4.0)
    assert groups["scatter f32 NCX", "kind k=s"].count == 2
    assert groups["scatter f32 NCX", "batch 1"].count == 1


def test_change_compares_speedups_of_the_layers_both_runs_share(capsys: pytest.CaptureFixture[str]) -> None:
    other = LINE.replace("n1", "n2")
    machine = {"processor": "P", "isa": "avx2", "versions": {}}
    before = Run({}, machine, [result(unstride=timed(2.0), torch=timed(1.0)), result("b", other, torch=timed(1.0))])
    after = Run({}, machine, [result(unstride=timed(3.0), torch=timed(3.0)), result("b", other, unstride=timed(1.0))])
    [change] = compare(*([make_row(found) for found in run.results] for run in (before, after)))
    assert (change.before, change.after, change.ratio) == (0.5, 1.0, 2.0)
    print_change(before, after)
    assert "geometric mean of the ratios 2.000" in capsys.readouterr().out


def test_rounds_respect_request_time_and_floor() -> None:
    effort = Effort(rounds=9, layer_seconds=10.0, least_rounds=3)
    assert [plan_rounds(seconds, effort) for seconds in (0.0, 0.1, 2.0, 100.0)] == [9, 9, 5, 3]
    assert plan_rounds(100.0, Effort(rounds=2)) == 2


def test_a_saved_run_reads_back_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    settings = {"threads": 2, "peers": ["torch"]}
    run = open_run(settings, path, resume=True)
    run.add(result(unstride=timed(1e-3), torch=timed(2e-3)))
    again = open_run(settings, path, resume=True)
    assert again.results == run.results
    assert again.finished == {LINE}
    assert open_run({**settings, "threads": 1}, path, resume=True).results == []
    assert last_run(path).results == []


def test_a_torn_last_line_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run = open_run({"threads": 2}, path, resume=False)
    run.add(result(torch=timed(1e-3)))
    with path.open("a") as stream:
        stream.write('{"result": {"lay')
    assert last_run(path).results == run.results
    path.write_text("{torn\n" + path.read_text())
    with pytest.raises(FormatError, match="line 1"):
        last_run(path)


def test_a_file_without_a_run_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for path in (empty, tmp_path / "absent.jsonl"):
        with pytest.raises(FormatError):
            last_run(path)


def test_the_picture_is_xml_with_one_dot_a_layer_on_a_logarithmic_axis() -> None:
    speeds = {"a": 0.5, "b<&": 1.0, "c": 2.0, "d": 4.0}
    lines = [LINE.replace("n1", f"n{n}") for n in range(1, 5)]
    pairs = zip(speeds.items(), lines, strict=True)
    rows = [make_row(result(name, line, unstride=timed(1.0), torch=timed(s))) for (name, s), line in pairs]
    tree = ElementTree.fromstring(speedup_svg(rows, "title <1>"))
    space = {"s": "http://www.w3.org/2000/svg"}
    dots = [float(dot.attrib["cx"]) for dot in tree.findall("s:circle", space)]
    steps = [b - a for a, b in pairwise(dots)]
    assert len(dots) == 4
    assert all(math.isclose(step, steps[0], abs_tol=0.2) for step in steps)
    assert "geometric mean 1.41" in "".join(tree.itertext())


def test_the_report_names_layers_families_and_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    row = result("some/layer", unstride=timed(1e-3), torch=timed(2e-3), jax=Outcome("unsupported", "no such thing"))
    run = Run({"threads": 2}, {"processor": "P", "isa": "avx2", "versions": {"torch": "1"}}, [row])
    print_report(run)
    text = capsys.readouterr().out
    for piece in (
        "some/layer",
        "kind k=s",
        "2.00",
        "unsupported: no such thing",
        "torch 1",
        "100 %",
        "first result",
        "took 30 %",
    ):
        assert piece in text
    assert json.loads(json.dumps(as_json(run)))["groups"][0]["best"] == 2.0


def test_plain_tables_align_numbers_right_and_words_left() -> None:
    assert plain_table(["name", "n"], [["a", "1"], ["long", "100"]]).splitlines() == [
        "name    n",
        "----  ---",
        "a       1",
        "long  100",
    ]
