"""Whole networks with `accelerate` beside stock torch, in turns: the table of docs/bridges/torch.md.

    python bench/bridges.py [--rounds 15] [--patience 60] [--threads 2]

Each round runs both sides for a tenth of a second or more, in changing order. On a shared machine many rounds are
spoilt by company, and torch's barriers suffer most: the rounds with the least of it are used, and the last column says
how much of the machine others still took. A row shows the median time of each side and the median of the ratios taken
within rounds. Both sides run the same modules; only the transposed convolutions change hands.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bridges.models import HifiGan, UNet3dDecoder, dcgan

from unstride.bench.bystanders import Bystanders
from unstride.bridges.torch import accelerate

QUIET = 0.05  # of the machine, taken by others

Case = tuple[str, nn.Module, tuple[Tensor, ...], Any]


def cases() -> list[Case]:
    """(name, model, inputs, memory format); torch knows no channels_last for 1D."""
    torch.manual_seed(0)
    volumes = torch.randn(1, 128, 16, 16, 16), torch.randn(1, 64, 32, 32, 32), torch.randn(1, 32, 64, 64, 64)
    plain = torch.contiguous_format
    return [
        ("DCGAN generator, batch 1", dcgan(), (torch.randn(1, 100, 1, 1),), plain),
        ("DCGAN generator, batch 16", dcgan(), (torch.randn(16, 100, 1, 1),), plain),
        ("DCGAN generator, batch 16, channels_last", dcgan(), (torch.randn(16, 100, 1, 1),), torch.channels_last),
        ("HiFi-GAN generator, 1 s of sound", HifiGan().eval(), (torch.randn(1, 80, 86),), plain),
        ("3D U-Net decoder, 16 to 64", UNet3dDecoder().eval(), volumes, plain),
        ("3D U-Net decoder, 16 to 64, channels_last", UNet3dDecoder().eval(), volumes, torch.channels_last_3d),
    ]


def transposed_share(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """The part of stock torch's time that its transposed convolutions take."""
    spent = [0.0]
    starts: list[float] = []
    hooks = []
    for module in model.modules():
        if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            hooks.append(module.register_forward_pre_hook(lambda *_: starts.append(time.perf_counter())))
            hooks.append(module.register_forward_hook(lambda *_: _add(spent, time.perf_counter() - starts.pop())))
    start = time.perf_counter()
    for _ in range(5):
        model(*inputs)
    share = spent[0] / (time.perf_counter() - start)
    for hook in hooks:
        hook.remove()
    return share


def _add(total: list[float], seconds: float) -> None:
    total[0] += seconds


def timed(call: Callable[[], object], seconds: float = 0.1) -> float:
    """The median milliseconds of a call, repeated for so long."""
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


@dataclass(frozen=True)
class Round:
    stock: float
    ours: float
    company: float


def one_round(contenders: dict[str, Callable[[], Tensor]]) -> Round:
    others = Bystanders()
    times = {key: timed(contenders[key]) for key in random.sample(list(contenders), 2)}
    return Round(times["stock"], times["ours"], others.share() or 0.0)


def measure(case: Case, rounds: int, patience: float) -> str:
    name, model, inputs, memory_format = case
    if memory_format is not torch.contiguous_format:
        model = model.to(memory_format=memory_format)
        inputs = tuple(x.to(memory_format=memory_format) for x in inputs)
    with torch.inference_mode(False):
        faster = copy.deepcopy(model)
    accelerate(faster)
    contenders: dict[str, Callable[[], Tensor]] = {"stock": lambda: model(*inputs), "ours": lambda: faster(*inputs)}
    difference = (contenders["stock"]() - contenders["ours"]()).abs().max()
    if not difference < 1e-3:
        raise SystemExit(f"{name}: results differ by {difference}")
    found: list[Round] = []
    end = time.monotonic() + patience
    while sum(r.company < QUIET for r in found) < rounds and (time.monotonic() < end or len(found) < rounds):
        found.append(one_round(contenders))
    used = sorted(found, key=lambda r: r.company)[:rounds]
    ratio = statistics.median(r.stock / r.ours for r in used)
    stock, ours = (statistics.median(getattr(r, key) for r in used) for key in ("stock", "ours"))
    company = statistics.mean(r.company for r in used)
    share = transposed_share(model, inputs)
    return f"| {name} | {share:.0%} | {stock:.1f} | {ours:.1f} | {ratio:.2f} | {company:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for quiet rounds of a network")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds\n")
    print("| network | transposed share | torch, ms | accelerated, ms | times faster | others |")
    print("|---|---|---|---|---|---|")
    with torch.inference_mode():
        for case in cases():
            print(measure(case, options.rounds, options.patience), flush=True)


if __name__ == "__main__":
    main()
