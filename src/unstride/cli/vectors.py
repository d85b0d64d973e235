"""Write golden test vectors: exact cases that probe where implementations of transposed convolution part ways.

The index says what every case probes and whether the shipped engine of the dialect will agree.

examples:
  unstride vectors --dialect openvino --rules runtime --format ir -o kit
  unstride vectors --dialect onnx --count 50 --seed 3 --format onnx -o kit
  unstride vectors --dialect onednn --rules spec --format json -o kit
"""

from __future__ import annotations

import argparse
from collections import Counter

from unstride.cli.output import Column, note, print_json, table

__all__ = ["configure", "execute"]

_FORMATS = {"openvino": "ir", "onnx": "onnx", "onednn": "json", "torch": "json"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dialect", choices=tuple(_FORMATS), default="openvino", help="whose operators (openvino)")
    parser.add_argument(
        "--rules", choices=("spec", "runtime"), default="spec", help="the document's or the engine's (spec)"
    )
    parser.add_argument("--count", type=int, default=66, metavar="N", help="how many cases (66)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (0)")
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16", "f64"), default="f32", help="element type (f32)")
    parser.add_argument("--format", choices=("ir", "onnx", "json"), help="OpenVINO IR, ONNX backend tests or JSON")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder to write into")


def execute(options: argparse.Namespace) -> int:
    from unstride.vectors import make_vectors, write_vectors

    vectors = make_vectors(options.dialect, options.rules, options.count, options.seed, options.dtype)
    about = {name: getattr(options, name) for name in ("dialect", "rules", "count", "seed", "dtype")}
    index = write_vectors(vectors, options.output, options.format or _FORMATS[options.dialect], **about)
    verdicts = Counter(vector.prediction.verdict for vector in vectors)
    if options.json:
        print_json({"index": str(index), "cases": len(vectors), "engine": dict(verdicts)})
        return 0
    found = {probe.name: probe.words for vector in vectors for probe in vector.probes}
    counts = Counter(probe.name for vector in vectors for probe in vector.probes)
    rows = [[name, found[name], str(counts[name])] for name in sorted(found, key=counts.__getitem__, reverse=True)]
    table([Column("probe"), Column("what it shows"), Column("cases", number=True)], rows)
    engine = vectors[0].prediction.engine if vectors else "the engine"
    told = ", ".join(f"{verdicts[name]} {name}" for name in ("agrees", "differs", "refuses") if verdicts[name])
    note(f"{len(vectors)} cases; predicted for {engine}: {told or 'nothing'}", "")
    note(f"wrote {index}", "green")
    return 0
