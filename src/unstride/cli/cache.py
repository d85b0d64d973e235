"""Show or clear the compiled-code cache."""

from __future__ import annotations

import argparse

from unstride.cli.output import Column, note, print_json, table

__all__ = ["configure", "execute"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="what to do (show)")


def execute(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from unstride.runtime.cache import cache_info, clear_cache

    before = cache_info()
    if options.action == "clear":
        clear_cache()
    info = cache_info()
    if options.json:
        print_json(asdict(info) | {"removed": before.entries - info.entries})
        return 0
    if options.action == "clear":
        note(f"removed {before.entries - info.entries} entries, {_mebibytes(before.bytes - info.bytes)}")
    rows = [
        ["directory", info.directory],
        ["entries", str(info.entries)],
        ["size", f"{_mebibytes(info.bytes)} of at most {_mebibytes(info.limit)}"],
        ["disk", f"not used: {info.disabled}" if info.disabled else "in use"],
    ]
    table([Column("code cache"), Column("")], rows)
    return 0


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
