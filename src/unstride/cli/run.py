"""Run the transposed convolutions of a model file and show what each computes, by which rule, and how fast.

Without a file the bundled example runs. Data that is not given is drawn from a seeded generator.

examples:
  unstride run
  unstride run --check
  unstride run model.xml --layer up1 --input x.npy --output y.npy
  unstride run model.onnx --threads 1 --json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Any

from unstride.cli.call import file_call, integers
from unstride.cli.output import Column, note, print_json, progress, sizes, table
from unstride.cli.shape import disagreement, window_text
from unstride.errors import FormatError, SizeLimitError

__all__ = ["configure", "execute"]


@dataclass(frozen=True)
class Outcome:
    """One layer's row; `error` and `bound` are None unless the result was checked."""

    layer: str
    operator: str
    problem: str
    rules: str
    rule: str
    window: str
    data: tuple[int, ...]
    result: tuple[int, ...]
    dtype: str
    algorithm: str
    compiled: str
    compile_ms: float
    milliseconds: float
    gflops: float
    error: float | None
    bound: float | None
    share_of_bound: float | None
    weights: str
    warning: str
    remark: str

    @property
    def passed(self) -> bool:
        return self.share_of_bound is None or self.share_of_bound <= 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="OpenVINO IR (.xml) or ONNX (.onnx); the bundled example if left out")
    parser.add_argument("--layer", help="run only this layer")
    parser.add_argument("--input", metavar="X.npy", help="data of the one layer that runs")
    parser.add_argument("--output", metavar="Y.npy", help="write the result of the one layer that runs")
    parser.add_argument("--rules", choices=("spec", "runtime"), help="rule set of OpenVINO layers (runtime)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads to use (all)")
    parser.add_argument("--accuracy", choices=("strict", "standard", "fast"), default="standard")
    parser.add_argument("--check", action="store_true", help="compare with the float64 reference; exit 1 if outside")
    parser.add_argument("--data", type=integers, metavar="SHAPE", help="the data shape, where the file leaves it open")
    parser.add_argument("--output-shape", type=integers, metavar="LIST", help="the result's spatial sizes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data that is drawn (0)")
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="time the best of up to N calls (20)")


def execute(options: argparse.Namespace) -> int:
    layers = _layers(options)
    if len(layers) != 1 and (options.input or options.output or options.data or options.output_shape):
        fix = "choose one with --layer"
        raise FormatError("file", f"{len(layers)} layers", "arrays and shapes belong to one layer", fix)
    steps = progress(layers, len(layers), "running", quiet=options.json)
    outcomes = [_run(layer, options) for layer in steps]
    if options.json:
        print_json([asdict(outcome) | {"passed": outcome.passed} for outcome in outcomes])
    else:
        _print(outcomes, options.check)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _layers(options: argparse.Namespace) -> list[Any]:
    from unstride.examples import example_path
    from unstride.formats import read

    file = options.file or example_path()
    layers = list(read(file, rules=options.rules))
    if options.layer is None:
        if not layers:
            raise FormatError("file", str(file), "holds no transposed convolution")
        return layers
    chosen = [layer for layer in layers if layer.name == options.layer]
    if not chosen:
        names = ", ".join(layer.name for layer in layers[:12])
        raise FormatError("--layer", options.layer, "the file has no such transposed convolution", f"choose {names}")
    return chosen


def _run(layer: Any, options: argparse.Namespace) -> Outcome:
    from unstride.formats.arrays import load_npy, save_npy

    given = load_npy(options.input) if options.input else None
    call = file_call(layer, given.shape if given is not None else options.data, options.output_shape)
    problem = call.resolution.problem
    _check_memory(problem)
    data, weights, bias = _operands(layer, problem, given, options.seed)
    compiled = layer.operator.compile(weights, bias=bias, threads=options.threads, accuracy=options.accuracy)
    arguments = {"output_shape": call.output_shape} if call.output_shape is not None else {}
    result = compiled(data, **arguments)
    seconds = _best_time(lambda: compiled(data, out=result, **arguments), options.repeat)
    if options.output:
        save_npy(options.output, result)
    by_norm = compiled.info.algorithm.startswith("winograd")
    checked = _compare(problem, (data, weights, bias), result, by_norm) if options.check else (None, None, None)
    windows = call.resolution.windows
    return Outcome(
        layer=layer.name,
        operator=layer.operator.document,
        problem=str(problem),
        rules=call.resolution.rules if call.resolution.other_rules else "",
        rule=windows[0].rule.name,
        window=window_text(problem),
        data=problem.data_shape,
        result=problem.result_shape,
        dtype=problem.dtype,
        algorithm=compiled.info.algorithm,
        compiled=compiled.info.compiled,
        compile_ms=compiled.info.compile_ms,
        milliseconds=seconds * 1e3,
        gflops=problem.flops / seconds / 1e9,
        error=checked[0],
        bound=checked[1],
        share_of_bound=checked[2],
        weights=layer.weights_note or "from the file",
        warning=disagreement(call.resolution),
        remark=call.remark,
    )


def _check_memory(problem: Any) -> None:
    from unstride.formats.blob import memory_budget

    if problem.bytes > memory_budget():
        rule = f"takes {problem.bytes / 2**30:.1f} GiB, more than half of the free memory"
        raise SizeLimitError("layer", str(problem), rule, "give a smaller --data")


def _operands(layer: Any, problem: Any, given: Any, seed: int) -> tuple[Any, Any, Any]:
    """Data, weights and bias; whatever neither the file nor the caller has is drawn."""
    import numpy as np

    from unstride.formats.arrays import dtype_of

    rng = np.random.default_rng(seed)
    dtype = dtype_of(problem.dtype)
    data = rng.standard_normal(problem.data_shape, np.float32).astype(dtype) if given is None else given
    if layer.load_weights is None:
        weights = (rng.standard_normal(layer.filter_shape, np.float32) / 8).astype(dtype)
    else:
        weights = layer.weights()
    return data, weights, layer.bias()


def _best_time(call: Any, repeat: int) -> float:
    """The best of several calls, in seconds; a slow layer is not repeated beyond half a second."""
    from time import perf_counter

    best, start = float("inf"), perf_counter()
    for _ in range(max(1, repeat)):
        before = perf_counter()
        call()
        best = min(best, perf_counter() - before)
        if perf_counter() - start > 0.5:
            break
    return max(best, 1e-9)


def _compare(problem: Any, operands: tuple[Any, Any, Any], result: Any, by_norm: bool) -> tuple[float, float, float]:
    """(largest error, the bound at that element, the largest share of its bound that any element uses)."""
    import numpy as np

    from unstride.reference import reference
    from unstride.vectors.judge import allowed_error

    if result.size == 0:
        return 0.0, 0.0, 0.0
    exact = reference(problem, *operands)
    bound = allowed_error(problem, *operands, by_norm=by_norm)
    with np.errstate(invalid="ignore"):
        error = np.abs(result.astype(np.float64) - exact)
    error = np.where(np.isnan(error) & ~np.isnan(exact), np.inf, np.nan_to_num(error, nan=0.0))
    shares = error / bound
    worst = int(np.argmax(shares))
    return float(error.flat[worst]), float(bound.flat[worst]), float(shares.flat[worst])


def _print(outcomes: list[Outcome], checked: bool) -> None:
    columns = [Column(name) for name in ("layer", "type", "data", "result", "window", "rule", "algorithm")]
    columns += [Column(name, number=True) for name in ("ms", "GFLOP/s")]
    columns += [Column("error and bound")] if checked else []
    rows = []
    for o in outcomes:
        rule = o.rule.split(".", 1)[-1]  # the dialect is the file's
        rows.append([o.layer, o.dtype, sizes(o.data), sizes(o.result), o.window, rule, o.algorithm])
        rows[-1] += [f"{o.milliseconds:.3f}", f"{o.gflops:.1f}"]
        if checked:
            rows[-1].append(f"{o.error:.1e} {'<=' if o.passed else 'FAILED >'} {o.bound:.1e}")
    table(columns, rows, ["" if o.passed else "bold red" for o in outcomes])
    for o in outcomes:
        if o.remark:
            note(o.remark)
        if o.weights != "from the file":
            note(f"{o.layer}: its weights are {o.weights}; drawn at random instead")
        if o.warning:
            note(f"{o.layer}: {o.warning}", "yellow")
    if checked:
        good = sum(o.passed for o in outcomes)
        verdict = f"{good} of {len(outcomes)} layers lie within the error bound of the float64 reference"
        note(verdict, "green" if good == len(outcomes) else "bold red")
