"""What a result may differ from the float64 truth, given the operands' types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

STOCK = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def assert_right(result: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, **attributes: Any) -> None:
    """Within the rounding of any order of summation of the float64 result; type and shape as torch has them."""
    stock = STOCK[w.dim() - 2]
    wide = [None if t is None else t.detach().double() for t in (x, w, bias)]
    exact = stock(*wide, **attributes)
    size = stock(*(None if t is None else t.abs() for t in wide), **attributes)
    terms = w.shape[0] * w[0, 0].numel() + 1
    u = 2.0**-53 if x.dtype is torch.float64 else 2.0**-24
    bound = 4 * terms * u * size + 2 * _ROUNDOFF[x.dtype] * exact.abs() + 1e-7
    assert result.dtype is x.dtype
    assert result.shape == exact.shape
    worst = ((result.detach().double() - exact).abs() - bound).max() if exact.numel() else torch.tensor(-1.0)
    assert worst <= 0, f"{float(worst)} beyond the bound"
