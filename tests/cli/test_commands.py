"""What the commands print, write and answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unstride.cli import COMMANDS, main
from unstride.examples import example_path
from unstride.formats import read
from unstride.formats.arrays import load_npy, save_npy

ROOT = Path(__file__).parents[2]
CALL = ["--data", "1,1,5,5", "--filter", "1,1,3,3", "--strides", "2,2", "--pads-begin", "1,1", "--pads-end", "1,1"]
LINE = "scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1 y10"


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# -- the command itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("unstride ")


BAD_INPUT = {
    "no such command": ["shapes"],
    "no such option": ["shape", "--data", "1,1,4", "--fliter", "1,1,3"],
    "nothing to go by": ["shape"],
    "not a list": ["shape", "--data", "1,one,4", "--filter", "1,1,3"],
    "negative size": ["shape", "--data", "1,-1,4", "--filter", "1,1,3"],
    "size of 2**63": ["shape", "--data", f"1,1,{2**63}", "--filter", "1,1,3"],
    "rank": ["shape", "--data", "1,1,4", "--filter", "1,1,3,3,3"],
    "stride 0": ["shape", "--data", "1,1,4", "--filter", "1,1,3", "--strides", "0"],
    "auto_pad": ["shape", "--data", "1,1,4", "--filter", "1,1,3", "--auto-pad", "sometimes"],
    "torch without symmetry": ["shape", "--dialect", "torch", *CALL[:6], "--pads-end", "1,1"],
    "problem line": ["explain", "scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1"],
    "problem with a sideways letter": ["explain", LINE.replace("k3", "q3")],
    "missing file": ["run", "nowhere.xml"],
    "unknown kind of file": ["run", "model.bin"],
    "no such layer": ["run", "--layer", "nobody"],
    "arrays for five layers": ["run", "--input", "x.npy"],
    "missing array": ["run", "--layer", "volume_3d", "--input", "nowhere.npy"],
    "threads": ["run", "--layer", "volume_3d", "--threads", "0"],
    "too large": ["run", "--layer", "vocoder_1d", "--data", f"1000,32,{2**27}"],
    "choose a layer": ["explain", str(example_path())],
    "unwritable": ["explain", LINE, "--svg", "/nowhere/at/all.svg"],
    "vectors without a place": ["vectors"],
    "vectors into a file": ["vectors", "--count", "1", "-o", str(Path(__file__))],
    "vectors of another dialect": ["vectors", "--dialect", "onednn", "--format", "ir", "-o", "kit"],
    "too many vectors": ["vectors", "--count", "1000000000", "-o", "kit"],
    "no cases": ["check", "--cases", "0"],
    "unknown engine": ["check", "--against", "abacus"],
    "cache": ["cache", "burn"],
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(BAD_INPUT[name])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("unstride")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_no_traceback_reaches_the_shell_and_light_commands_stay_light() -> None:
    """A process of its own: exit codes as the shell sees them, and what was imported on the way."""
    script = (
        "import sys\nfrom unstride.cli import main\n"
        f"code = main({['shape', *CALL]!r})\n"
        "heavy = {'numpy', 'llvmlite', 'ml_dtypes', 'openvino', 'onnx', 'torch'} & set(sys.modules)\n"
        "sys.exit(code or ' '.join(sorted(heavy)) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "unstride.cli", "run", "nowhere.xml"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = f"{sys.executable} -m unstride.cli explain '{LINE}' | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    assert done.stderr == ""


# -- run -------------------------------------------------------------------------------------------------------------


def test_the_bundled_example_runs_and_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--check"]) == 0
    printed = capsys.readouterr().out
    assert all(layer.name in printed for layer in read(example_path()))
    assert "5 of 5 layers lie within the error bound" in printed
    assert "the document (spec) would begin at [2, 2] instead of [3, 3]" in printed


def test_run_tells_everything_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = json_of(capsys, "run", "--check", "--repeat", "1")
    assert [outcome["layer"] for outcome in outcomes] == [layer.name for layer in read(example_path())]
    for outcome in outcomes:
        assert outcome["passed"]
        assert outcome["share_of_bound"] <= 1
        assert outcome["algorithm"] != "reference"
        assert outcome["gflops"] > 0
        assert outcome["problem"].startswith("scatter f32 NCX")


def test_arrays_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = next(layer for layer in read(example_path()) if layer.name == "segmentation_2d")
    x = np.random.default_rng(1).standard_normal((2, 8, 9, 11)).astype(np.float32)
    save_npy(tmp_path / "x.npy", x)
    files = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]
    for rules in ("runtime", "spec"):
        arguments = ["--layer", layer.name, "--rules", rules, "--output-shape", "35,42", "--check"]
        (outcome,) = json_of(capsys, "run", *files, *arguments)
        assert outcome["rules"] == rules
        operator = next(item for item in read(example_path(), rules=rules) if item.name == layer.name).operator
        with pytest.warns(UserWarning, match="rules"):
            expected = operator(x, layer.weights(), output_shape=[35, 42])
        assert np.array_equal(load_npy(tmp_path / "y.npy"), expected)


def test_files_that_engines_wrote_run_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("onnx")
    from tests.formats import models, test_onnx_file

    paths = [models.save_with_openvino(tmp_path), test_onnx_file.save(tmp_path, test_onnx_file.zoo())]
    for path, count in zip(paths, (5, 3), strict=True):
        outcomes = json_of(capsys, "run", str(path), "--check", "--repeat", "1")
        assert len(outcomes) == count
        assert all(outcome["passed"] and outcome["weights"] == "from the file" for outcome in outcomes)


def test_a_wrong_result_is_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference is spoilt, so that a correct kernel seems wrong: the comparison must be able to fail."""
    from unstride import reference

    honest = reference.reference
    monkeypatch.setattr(reference, "reference", lambda *operands: honest(*operands) + 1.0)
    assert main(["run", "--layer", "volume_3d", "--check"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_seeded_data_is_the_same_every_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for name in ("a.npy", "b.npy"):
        json_of(capsys, "run", "--layer", "volume_3d", "--seed", "7", "--output", str(tmp_path / name))
        results.append(load_npy(tmp_path / name))
    assert np.array_equal(*results)


def test_one_thread_gives_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for threads in ("1", "2"):
        output = str(tmp_path / f"{threads}.npy")
        json_of(capsys, "run", "--layer", "generator_2d", "--threads", threads, "--output", output)
    assert np.array_equal(load_npy(tmp_path / "1.npy"), load_npy(tmp_path / "2.npy"))


# -- shape and explain -----------------------------------------------------------------------------------------------


def test_shape_names_every_dialect(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--data", "1,1,4", "--filter", "1,1,4", "--strides", "2", "--output-shape", "7", "--auto-pad", "same_upper"]
    answer = json_of(capsys, "shape", *call)
    begins = {(item["operator"], item["rules"]): item["begin"] for item in answer["answers"] if not item["refusal"]}
    assert begins == {
        ("OpenVINO ConvolutionBackpropData", "spec"): [2],
        ("OpenVINO ConvolutionBackpropData", "runtime"): [2],
        ("oneDNN ConvolutionBackpropData", "spec"): [2],
        ("oneDNN ConvolutionBackpropData", "runtime"): [1],
        ("ONNX ConvTranspose", ""): [1],
    }
    refused = {item["operator"] for item in answer["answers"] if item["refusal"]}
    assert refused == {"oneDNN ConvTranspose", "torch conv_transpose"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dialect", "openvino", *CALL],
        ["--dialect", "onnx", *CALL],
        ["--dialect", "torch", *CALL],
        ["--dialect", "onednn-transpose", *CALL],
        ["--dialect", "onednn", *CALL, "--output-shape", "9,9"],
        [LINE.replace("x5 k3 s2 d1 b1 y10", "x5x5 k3x3 s2x2 d1x1 b1x1 y9x9")],
    ],
)
def test_one_case_in_every_spelling(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = json_of(capsys, "shape", *arguments)
    assert answer["problem"] == "scatter f32 NCX GIOX n1 g1 i1 o1 x5x5 k3x3 s2x2 d1x1 b1x1 y9x9"
    agreeing = {item["group"] for item in answer["answers"] if item["group"]}
    assert agreeing == {"A"} or "--output-shape" in arguments


def test_the_gradient_has_its_own_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--data", "1,1,9", "--filter", "1,1,3", "--strides", "2", "--pads-begin", "1", "--pads-end", "1"]
    answer = json_of(capsys, "shape", "--dialect", "onednn-gradient", *call)
    assert answer["problem"].startswith("gather")
    assert answer["result"] == [1, 1, 5]
    assert {item["operator"] for item in answer["answers"]} == {"oneDNN ConvTransposeBackpropData"}


def test_explain_shows_phases_overlap_and_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *CALL]) == 0
    printed = capsys.readouterr().out
    for words in ("Uneven overlap", "not a multiple of stride", "products per output on axis 0: 1 2 1 2 1 2 1 2 1"):
        assert words in printed
    for framework in ("OpenVINO", "oneDNN", "ONNX", "torch", "Keras", "JAX"):
        assert f"\n  {framework}" in printed


def test_explain_of_a_window_that_no_pads_can_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", LINE.replace("b1 y10", "b-2 y14")]) == 0
    printed = capsys.readouterr().out
    assert "no operator without output_shape has this window" in printed
    assert "2 zeros" in printed


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json_of(capsys, "explain", LINE)
    assert answer["problem"] == LINE
    assert answer["overlap"]["verdict"] == "uneven"
    assert {item["framework"] for item in answer["spellings"]} >= {"OpenVINO", "torch", "JAX"}


def test_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    assert main(["explain", *CALL, "--svg", str(svg), "--html", str(html)]) == 0
    assert svg.read_text(encoding="utf-8").startswith("<svg")
    assert "<html" in html.read_text(encoding="utf-8")
    capsys.readouterr()
    page = tmp_path / "b.html"
    answer = json_of(capsys, "explore", "-o", str(page), "--no-open")
    assert (answer["page"], answer["opened"]) == (str(page), False)
    assert "<html" in page.read_text(encoding="utf-8")


# -- check and cache -------------------------------------------------------------------------------------------------


def test_check_counts_outcomes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    report = json_of(capsys, "check", "--cases", "24", "--seed", "5", "--against", "none")
    assert report["engines"] == {"unstride": {"passed": 24, "failed": 0, "refused": 0, "crashed": 0, "hanging": 0}}


def test_cache_is_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNSTRIDE_CACHE_DIR", str(tmp_path / "cache"))
    assert json_of(capsys, "cache")["entries"] == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "unstride.cli", "run", "--layer", "volume_3d", "--json"]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert json_of(capsys, "cache")["entries"] > 0
    assert json_of(capsys, "cache", "clear")["removed"] > 0
    assert json_of(capsys, "cache")["entries"] == 0
