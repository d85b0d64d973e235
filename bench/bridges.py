"""Whole networks with `accelerate` beside stock torch, in turns: the table of docs/bridges/torch.md.

    python bench/bridges.py [--rounds 15] [--threads 2]

Each round runs every contender once, in changing order; a row shows the median time of each and the median of the
ratios taken within rounds. Both sides run the same modules; only the transposed convolutions change hands.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bridges.models import HifiGan, UNet3dDecoder, dcgan

from unstride.bridges.torch import accelerate

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
    model(*inputs)
    spent[0] = 0.0
    start = time.perf_counter()
    model(*inputs)
    share = spent[0] / (time.perf_counter() - start)
    for hook in hooks:
        hook.remove()
    return share


def _add(total: list[float], seconds: float) -> None:
    total[0] += seconds


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def measure(case: Case, rounds: int) -> str:
    name, model, inputs, memory_format = case
    if memory_format is not torch.contiguous_format:
        model = model.to(memory_format=memory_format)
        inputs = tuple(x.to(memory_format=memory_format) for x in inputs)
    share = transposed_share(model, inputs)
    with torch.inference_mode(False):
        faster = copy.deepcopy(model)
    accelerate(faster)
    contenders: dict[str, Callable[[], Tensor]] = {"stock": lambda: model(*inputs), "ours": lambda: faster(*inputs)}
    difference = (contenders["stock"]() - contenders["ours"]()).abs().max()
    if not difference < 1e-3:
        raise SystemExit(f"{name}: results differ by {difference}")
    times: dict[str, list[float]] = {"stock": [], "ours": []}
    for _ in range(rounds):
        for key in random.sample(list(contenders), 2):
            times[key].append(timed(contenders[key]))
    stock, ours = statistics.median(times["stock"]), statistics.median(times["ours"])
    ratio = statistics.median(a / b for a, b in zip(times["stock"], times["ours"], strict=True))
    return f"| {name} | {share:.0%} | {stock:.1f} | {ours:.1f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds\n")
    print("| network | transposed share | torch, ms | accelerated, ms | times faster |")
    print("|---|---|---|---|---|")
    with torch.inference_mode():
        for case in cases():
            print(measure(case, options.rounds), flush=True)


if __name__ == "__main__":
    main()
