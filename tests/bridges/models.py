"""Three networks whose time goes into transposed convolutions, with random weights: image, sound, volume."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def dcgan(latent: int = 100, width: int = 64, images: int = 3) -> nn.Sequential:
    """A DCGAN generator: [N, latent, 1, 1] -> [N, images, 64, 64]."""
    layers: list[nn.Module] = []
    channels = [latent, 8 * width, 4 * width, 2 * width, width]
    for index, (before, after) in enumerate(pairwise(channels)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers.append(nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, images, 4, 2, 1, bias=False), nn.Tanh()).eval()


class _Residual(nn.Module):
    """Two dilated convolutions of a HiFi-GAN residual block of the second kind."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        dilations = (1, 3)
        self.steps = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = x + step(nn.functional.leaky_relu(x, 0.1))
        return x


class HifiGan(nn.Module):
    """A HiFi-GAN generator with one residual block per stage: [N, mels, T] -> [N, 1, 256 * T]."""

    def __init__(self, mels: int = 80, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for stride, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            up = nn.ConvTranspose1d(width, width // 2, kernel, stride, (kernel - stride) // 2)
            width //= 2
            self.ups.append(up)
            self.blocks.append(_Residual(width, 3))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, block in zip(self.ups, self.blocks, strict=True):
            x = block(up(nn.functional.leaky_relu(x, 0.1)))
        return torch.tanh(self.last(nn.functional.leaky_relu(x)))


class UNet3dDecoder(nn.Module):
    """The decoder half of a 3D U-Net: transposed convolution, skip connection, convolution, at each level."""

    def __init__(self, widths: tuple[int, ...] = (128, 64, 32)) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.ups = nn.ModuleList(nn.ConvTranspose3d(before, after, 2, 2) for before, after in pairs)
        self.joins = nn.ModuleList(nn.Conv3d(2 * after, after, 1) for _, after in pairs)

    def forward(self, x: Tensor, *skips: Tensor) -> Tensor:
        for up, join, skip in zip(self.ups, self.joins, skips, strict=True):
            x = torch.relu(join(torch.cat([up(x), skip], 1)))
        return x
