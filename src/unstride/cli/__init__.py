"""The `unstride` command: exit 0 done, 1 a check or comparison failed, 2 bad input with one clear line on stderr."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from unstride import __version__
from unstride.errors import UnstrideError

__all__ = ["main"]

# name -> what it does; each is the module unstride.cli.<name>, imported only when it is asked for
COMMANDS = {
    "run": "run the transposed convolutions of a model file, or the bundled example",
    "shape": "result sizes and windows under every dialect and rule set, side by side",
    "explain": "one call taken apart: window, rule, phases, overlap, spellings, pictures",
    "explore": "open the interactive page in a browser",
    "check": "this package and installed engines against the reference, on random cases",
    "vectors": "write golden test vectors for a dialect and rule set",
    "bench": "measure this package side by side with installed engines",
    "cache": "show or clear the compiled-code cache",
}

_EPILOGUE = "\n".join(f"  {name:<9} {words}" for name, words in COMMANDS.items())


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UnstrideError as error:
        return _refuse(str(error))
    except MemoryError:
        return _refuse("not enough memory for this call")
    except KeyboardInterrupt:
        print("unstride: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away; a second failure while Python flushes stdout at exit must not be shown either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(arguments: list[str]) -> int:
    parser = _Parser(
        prog="unstride",
        usage="unstride COMMAND [OPTIONS]",
        description="Transposed convolution and its gradient: the exact rules, and the fastest kernels.",
        epilog=f"commands:\n{_EPILOGUE}\n\nunstride COMMAND --help tells more; every command takes --json.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    if not arguments or arguments[0].startswith("-"):
        if parser.parse_args(arguments).version:
            print(f"unstride {__version__}")
        else:
            parser.print_help()
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        parser.error(f"no command {name[:40]!r}; the commands are {', '.join(COMMANDS)}")
    if name == "bench":  # the harness has a command line of its own, with the same exit codes and --json
        from unstride.bench import main as bench

        return bench(rest)
    command = importlib.import_module(f"unstride.cli.{name}")
    parser = _Parser(
        prog=f"unstride {name}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    with warnings.catch_warnings():
        # Where rule sets disagree the commands say so in their own words.
        warnings.simplefilter("ignore")
        return int(command.execute(parser.parse_args(rest)))


def _refuse(message: str) -> int:
    print("unstride: error:", message, file=sys.stderr)
    return 2
