"""Upsample a Zarr volume that fits in no worker's memory, twofold along each axis, on a cluster of worker processes.

    python examples/upsample_zarr.py                                # makes a volume, upsamples it, checks samples of it
    python examples/upsample_zarr.py --input scan.zarr --output big.zarr --workers 8 --memory 2GB
    python examples/upsample_zarr.py --scaling 1 2                  # the same volume on 1 and on 2 workers, with times

Needs `pip install 'unstride[dask]' zarr`. Every number is exact: the last step computes random boxes of the result in
memory, from the boxes of the input they depend on, and compares bit by bit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from dask.distributed import Client, LocalCluster, progress, wait

from unstride.bridges.dask import conv_transpose
from unstride.dialects.functional import ConvTranspose

# Linear interpolation by two is a transposed convolution with the kernel 1/4, 3/4, 3/4, 1/4 along each axis.
TAPS = np.array([0.25, 0.75, 0.75, 0.25], np.float32)
KERNEL = np.einsum("i,j,k->ijk", TAPS, TAPS, TAPS)[None, None]


def make_volume(path: Path, size: int, chunk: int) -> None:
    """Write a volume of smooth blobs and noise, chunk by chunk."""
    store = zarr.create_array(path, shape=(size,) * 3, chunks=(chunk,) * 3, dtype="float32", compressors=None)
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(size, dtype=np.float32) / 17)
    starts = range(0, size, chunk)
    for z in starts:
        for y in starts:
            for x in starts:
                box = tuple(slice(a, min(a + chunk, size)) for a in (z, y, x))
                plane = wave[box[0], None, None] + wave[None, box[1], None] * wave[None, None, box[2]]
                store[box] = plane + rng.standard_normal(plane.shape, np.float32) / 8


def upsampled(path: Path) -> Any:
    """The lazy result for a volume on disk; nothing is read yet."""
    volume = da.from_zarr(str(path))
    return conv_transpose(volume[None, None], KERNEL, stride=2, padding=1)[0, 0]


def run(source: Path, target: Path, workers: int, memory: str) -> float:
    """Upsample `source` into `target` with a progress bar; the seconds it took."""
    options = {"n_workers": workers, "threads_per_worker": 1, "memory_limit": memory, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        lazy = upsampled(source)
        store = zarr.create_array(
            target, shape=lazy.shape, chunks=lazy.chunksize, dtype="float32", compressors=None, overwrite=True
        )
        start = time.perf_counter()
        future = client.compute(da.store(lazy, store, compute=False, lock=False))
        progress(future, notebook=False)
        wait(future)
        future.result()
        return time.perf_counter() - start


def check(source: Path, target: Path, boxes: int = 5, side: int = 24) -> None:
    """Compute random boxes of the result in memory and compare them bit by bit."""
    volume, result = zarr.open_array(source, mode="r"), zarr.open_array(target, mode="r")
    layer = ConvTranspose(stride=2, padding=1).compile(KERNEL, accuracy="strict")
    rng = np.random.default_rng(1)
    for _ in range(boxes):
        start = [int(rng.integers(0, max(1, size - side))) for size in volume.shape]
        part = volume[tuple(slice(a, a + side) for a in start)]
        whole = layer(part[None, None])[0, 0]
        inner = tuple(slice(2, n - 2) for n in whole.shape)  # the rim depends on pixels outside the box
        place = tuple(slice(2 * a + 2, 2 * a + n - 2) for a, n in zip(start, whole.shape, strict=True))
        if not np.array_equal(whole[inner], result[place]):
            raise SystemExit(f"box at {start}: the result differs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--input", type=Path, help="a Zarr array of float32; made if not given")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--size", type=int, default=384, help="edge of the volume that is made (default 384)")
    parser.add_argument("--chunk", type=int, default=64, help="edge of its chunks (default 64)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="500MB", help="limit of each worker (default 500MB)")
    parser.add_argument("--scaling", type=int, nargs="+", help="run once for each of these numbers of workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source, target = options.input or Path(scratch, "volume.zarr"), options.output or Path(scratch, "result.zarr")
        if options.input is None:
            make_volume(source, options.size, options.chunk)
        sizes = [array.nbytes / 1e9 for array in (zarr.open_array(source, mode="r"), upsampled(source))]
        print(f"{sizes[0]:.2f} GB in, {sizes[1]:.2f} GB out, {options.memory} for each worker")
        for workers in options.scaling or [options.workers]:
            seconds = run(source, target, workers, options.memory)
            check(source, target)
            rate = sizes[1] / seconds
            print(f"\n{workers} workers: {seconds:.1f} s, {rate:.2f} GB/s of result, sampled boxes equal bit by bit")


if __name__ == "__main__":
    main()
