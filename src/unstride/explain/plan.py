"""A plan as text: how a problem will be computed on a machine, and what bounds its time. Nothing is compiled or run.

`explain_plan` is for a person; `dump` is the whole plan in a stable form, to hold one version against another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import prod

from unstride.plan.across import AcrossPlan
from unstride.plan.choose import Plan, choose
from unstride.plan.direct import DirectPlan, PanelSource
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch
from unstride.plan.machine import AMX, Machine
from unstride.plan.matrix import DEPTH, SIDE, SMALLEST, MatrixPlan
from unstride.plan.phases import AxisPhases
from unstride.plan.winograd import WinogradPlan
from unstride.problem import Problem, Structure

__all__ = ["Peak", "assumed_peak", "dump", "explain_plan"]

_MOST_STEPS = 500_000  # kernel elements times column blocks: beyond this a plan takes seconds to make
_MOST_PHASES = 8
_MOST_TAPS = 12
_MOST_PANELS = 16
_ASSUMED_HERTZ = 3e9
_ASSUMED_BYTES_PER_SECOND = 12e9


@dataclass(frozen=True)
class Peak:
    """What all threads together can do at most. `source` says where the numbers come from."""

    flops_per_second: float
    bytes_per_second: float
    source: str


def assumed_peak(machine: Machine, dtype: str, threads: int) -> Peak:
    """A round guess where nobody has measured: two vector multiply-adds a cycle at 3 GHz, twice as many of pairs, or a
    row of a tile of halves, 12 GB/s for each thread."""
    cores = min(threads, machine.cores)
    lanes = machine.isa.lanes(8 if dtype == "f64" else 4)
    products, what = 2 * lanes, f"2 multiply-adds of {lanes} lanes"
    if dtype in machine.matrix:
        products, how = (SIDE * DEPTH, "in tiles") if machine.matrix_isa is AMX else (2 * products, "in pairs")
        what = f"{products} multiply-adds {how}"
    source = f"assumed: 3 GHz, {what} a cycle, 12 GB/s, on each of {cores} cores"
    return Peak(cores * 2 * products * _ASSUMED_HERTZ, cores * _ASSUMED_BYTES_PER_SECOND, source)


def explain_plan(
    problem: Problem, machine: Machine, threads: int, peak: Peak | None = None, accuracy: str = "standard"
) -> str:
    """Algorithm and its reason, phases, tile, panels, work split, scratch, and the time no direct method can beat.

    >>> from unstride.plan.machine import AVX2
    >>> p = Problem.parse("scatter f32 NXC GIOX n1 g1 i16 o64 x56 k4 s2 d1 b1 y112")
    >>> print(explain_plan(p, Machine(AVX2, 2), 2).splitlines()[1])
             tile 6 rows x 16 columns (2 vectors of 8), accumulated in f32
    """
    peak = peak or assumed_peak(machine, problem.dtype, threads)
    if not _plannable(problem.structure):
        return f"plan     not shown: more than {_MOST_STEPS:,} kernel elements\n{_roofline(problem, peak)}"
    plan, launches = choose(problem, machine, threads, accuracy)
    size = 8 if problem.dtype == "f64" else 4
    packed = 2 if isinstance(plan, MatrixPlan) else size
    lines = [
        f"plan     {plan.algorithm} on {_base(plan).isa.name}: {plan.reason}",
        f"         {_tile(plan)}, accumulated in f{8 * size}",
        *(f"         {line}" for line in _axes(_base(plan))),
        f"panels   {_count(len(plan.panels), 'panel')}, {plan.packed_elements * packed:,} bytes packed",
        *_work(plan, launches),
        _roofline(problem, peak) + ("; Winograd may beat it" if isinstance(plan, WinogradPlan) else ""),
    ]
    return "\n".join(lines)


def _base(plan: Plan) -> DirectPlan:
    return plan if isinstance(plan, DirectPlan) else plan.direct


def _tile(plan: Plan) -> str:
    tile = _base(plan).tile
    if isinstance(plan, AcrossPlan):
        return f"lines of {tile.lanes} positions, {plan.rows_per_chunk} rows of phases and channels at a time"
    if isinstance(plan, MatrixPlan):
        return f"tiles of {SIDE} positions x {SIDE} channels, up to four at once, {DEPTH} source channels a step"
    text = f"tile {tile.rows} rows x {tile.columns} columns ({tile.vectors} vectors of {tile.lanes})"
    if isinstance(plan, WinogradPlan):
        return f"{plan.points} products of {text}, errors up to {plan.growth:.3g} times a direct sum's"
    return text


def dump(plan: Plan, launches: Iterable[Launch] = ()) -> str:
    """Everything that generated code will read, as text: long tables by their first entries and a digest of all."""
    base = _base(plan)
    lines = _direct_lines(base)
    if plan is not base:
        lines += [f"special {plan.algorithm}: {plan.reason}", f"packed {plan.packed_elements}", *_special_lines(plan)]
    for launch in launches:
        lines += _launch_lines(launch)
    return "\n".join(lines)


def _special_lines(plan: Plan) -> list[str]:
    if isinstance(plan, AcrossPlan):
        ends, rows, inner = _table(plan.chunk_ends), _table(plan.bias_rows), _table(plan.inner_taps)
        lines = [f"rows {plan.rows_per_chunk} chunk_ends {ends} bias_rows {rows} inner {inner}"]
        return lines + _panel_lines(plan.panels, plan.sources)
    if isinstance(plan, WinogradPlan):
        matrices = [getattr(axis, name) for axis in (plan.v, plan.x) for name in ("source", "kernel", "result")]
        lines = [f"points {plan.points} growth {plan.growth:.6g} matrices {_digest(matrices)}"]
        return lines + _panel_lines(plan.panels, plan.direct.sources)
    return []


def _direct_lines(plan: DirectPlan) -> list[str]:
    s, tile = plan.structure, plan.tile
    sizes = ["x".join(map(str, values)) for values in (s.kernel, s.stride, s.dilation)]
    head = f"{s.direction} {s.dtype} {s.data_layout} {s.filter_layout} g{s.groups} i{s.ci} o{s.co}"
    return [
        f"structure {head} k{sizes[0]} s{sizes[1]} d{sizes[2]}",
        f"plan {plan.algorithm} {plan.isa.name}: {plan.reason}",
        f"tile {tile.rows} x {tile.vectors} x {tile.lanes}",
        f"flags merged={plan.merged} through_strip={plan.through_strip} prefill={plan.needs_prefill}",
        f"channels reduce={plan.reduce_channels} result={plan.result_channels} pitch={plan.pixel_pitch}",
        f"packed {plan.packed_elements} bias {plan.bias_elements} flush_ends {_table(plan.flush_ends)}",
        *_axes(plan, most_phases=10**6, most_taps=10**6),
        f"inner {_table(plan.inner_taps)}",
        f"outer {_table(plan.outer_taps)} planes {_table(plan.planes)} phases {_table(plan.outer_phases)}",
        f"x_ranges {_table(plan.x_ranges)} v_phases {_table(plan.v_phases)}",
        *_panel_lines(plan.panels, plan.sources),
    ]


def _plannable(structure: Structure) -> bool:
    blocks = structure.groups * -(-max(structure.ci, structure.co) // 16)
    return blocks * prod(structure.kernel) <= _MOST_STEPS


def _axes(plan: DirectPlan, most_phases: int = _MOST_PHASES, most_taps: int = _MOST_TAPS) -> list[str]:
    return [f"axis {i}: {_axis(axis, most_phases, most_taps)}" for i, axis in enumerate(plan.axes)]


def _axis(axis: AxisPhases, most_phases: int, most_taps: int) -> str:
    """Each phase with its taps as `kernel index @ source offset`."""
    shown = [
        f"{phase.r}: {_abridged([f'{tap.k}@{tap.a:+d}' for tap in phase.taps], most_taps)}"
        for phase in axis.phases[:most_phases]
    ]
    more = f"; ... {len(axis.phases)} in all" if len(axis.phases) > most_phases else ""
    steps = f"source step {axis.source_step}, result step {axis.result_step}"
    return f"{steps}; phases {'; '.join(shown)}{more}"


def _work(plan: Plan, launches: tuple[Launch, ...]) -> list[str]:
    launch = launches[0]
    get = launch.fields.__getitem__
    units = launch.tasks // max(1, get(Job.P_BLOCKS))
    box = f"{_count(get(Job.IMAGES_PER_UNIT), 'image')} x {get(Job.V_UNIT)} rows x {get(Job.X_UNIT)} columns"
    blocks = _count(get(Job.P_BLOCKS), "panel block")
    cut = f"{_count(units, 'unit')} of {box}, {blocks}: {_count(launch.tasks, 'task')}"
    threads = max(1, min(launch.threads, launch.tasks))
    lines = [
        f"work     {cut} for {_count(threads, 'thread')}",
        f"scratch  {launch.scratch_per_slot:,} bytes a thread, {launch.scratch_per_slot * threads:,} in all",
    ]
    if len(launches) > 1:
        held = "an infinity, or values of very different size,"
        if isinstance(plan, MatrixPlan):
            held = f"numbers below {SMALLEST:.2g} that are not zero"
        lines.append(f"         units that hold {held} are left to direct")
    if launch.prefill:
        lines.append("         the result starts as bias: some of its elements are reached by no tap")
    return lines


def _roofline(problem: Problem, peak: Peak) -> str:
    compute, memory = problem.flops / peak.flops_per_second, problem.bytes / peak.bytes_per_second
    bound = "arithmetic" if compute >= memory else "memory"
    return (
        f"roofline {_time(max(compute, memory))}, bound by {bound}: {problem.flops:,} flops {_time(compute)}, "
        f"{problem.bytes:,} bytes {_time(memory)} ({peak.source})"
    )


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} us"


def _panel_lines(panels: tuple[tuple[int, ...], ...], sources: tuple[PanelSource, ...]) -> list[str]:
    lines = ["panels " + " ".join(field.name.lower() for field in Panel)]
    lines += [f"  {' '.join(map(str, panel))}" for panel in panels[:_MOST_PANELS]]
    packing = [(source.group, source.steps, source.columns) for source in sources]
    return [*lines, f"  {len(panels)} in all, digest {_digest(panels)}, packing {_digest(packing)}"]


def _launch_lines(launch: Launch) -> list[str]:
    filled = [f"{field.name.lower()}={launch.fields[field]}" for field in Job if launch.fields[field]]
    return [
        f"launch {launch.problem}",
        f"  tasks={launch.tasks} threads={launch.threads} scratch={launch.scratch_per_slot} prefill={launch.prefill}",
        f"  {' '.join(filled)}",
        f"  sizes {_table(launch.sizes)}",
    ]


def _table(values: Iterable[object], most: int = 24) -> str:
    items = [str(value).replace(" ", "") for value in values]
    digest = f" digest {_digest(items)}" if len(items) > most else ""
    return f"[{_abridged(items, most)}]{digest}"


def _abridged(items: list[str], most: int) -> str:
    return " ".join(items[:most]) + (f" ... ({len(items)})" if len(items) > most else "")


def _digest(value: object) -> str:
    return blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
