"""The saved run: one JSON line for the settings, then one for each finished layer. Appended to, never rewritten."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from unstride.bench.measure import LayerResult
from unstride.errors import FormatError
from unstride.runtime.machine import host

__all__ = ["Run", "describe_machine", "last_run", "open_run"]

_PACKAGES = ("unstride", "numpy", "llvmlite", "torch", "openvino", "onnxruntime", "jax")


@dataclass
class Run:
    """What was asked for, on which machine, and the layers finished so far."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    results: list[LayerResult] = field(default_factory=list)
    path: Path | None = None

    def add(self, result: LayerResult) -> None:
        """Keep a finished layer, on disk too before this returns."""
        self.results.append(result)
        if self.path is not None:
            _append(self.path, {"result": result.as_dict()})

    @property
    def finished(self) -> set[str]:
        """The problem lines that need not be measured again."""
        return {result.problem for result in self.results}


def open_run(settings: dict[str, Any], path: Path | None, *, resume: bool) -> Run:
    """A run that saves to `path`; with `resume`, the last run of that file goes on if it had the same settings."""
    if resume and path is not None and path.exists():
        previous = last_run(path)
        if previous.settings == settings:
            previous.path = path
            return previous
    run = Run(settings, describe_machine(), path=path)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, {"run": {"settings": settings, "machine": run.machine}})
    return run


def last_run(path: Path) -> Run:
    """The last run in a saved file. A torn last line, left by a killed process, is passed over."""
    run: Run | None = None
    for line in _lines(path):
        if "run" in line:
            run = Run(line["run"]["settings"], line["run"]["machine"])
        elif run is not None:
            run.results.append(LayerResult.from_dict(line["result"]))
    if run is None:
        raise FormatError("--report", str(path), "holds no saved benchmark run")
    return run


def describe_machine() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    machine = host()
    return {
        "processor": _processor(),
        "isa": machine.isa.name,
        "cores": machine.cores,
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _append(path: Path, value: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(value, separators=(",", ":")) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError("--report", str(path), f"cannot be read: {error}") from None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if number != len(lines) - 1:
                raise FormatError("--report", str(path), f"line {number + 1} is not JSON") from None
