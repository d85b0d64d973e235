"""Hostile model files: one clear error, in less than a second, without memory, without touching anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats import models
from unstride.errors import UnstrideError
from unstride.formats import read

BLOB = np.ones((2, 1, 3, 3), np.float32).tobytes()
Maker = Callable[[Path], Path]


def ir(text: str | bytes, blob: bytes = BLOB) -> Maker:
    return lambda folder: models.write(folder, text, blob)


def _cycle() -> str:
    body = f'<data destination_type="f32"/><input>{models.ports((2, 1, 3, 3))}</input>'
    body += f"<output>{models.ports((2, 1, 3, 3), first=1)}</output>"
    good = models.one_layer()
    broken = models.layer(3, "Convert", body) + models.layer(4, "Convert", body)
    text = good.replace("</layers>", broken + "</layers>")
    links = models.edge(3, 1, 4, 0) + models.edge(4, 1, 3, 0) + models.edge(3, 1, 2, 1)
    return text.replace(models.edge(1, 0, 2, 1), links)


def _many(count: int) -> str:
    body = f'<data strides="2,2"/><input>{models.ports((1, 2, 4, 4), (2, 1, 3, 3))}</input>'
    layers = "".join(models.layer(n, "ConvolutionBackpropData", body) for n in range(count))
    return models.net(layers, "")


def _laughs() -> str:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "ha"}">' for n in range(12))
    return f'<?xml version="1.0"?><!DOCTYPE net [{entities}]><net version="10" name="&a11;"/>'


def _sparse(folder: Path) -> Path:
    path = models.write(folder, "<net")
    os.truncate(path, 1 << 36)
    return path


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.xml")
    return folder / "pipe.xml"


def _pipe_of_weights(folder: Path) -> Path:
    path = models.write(folder, models.one_layer())
    os.mkfifo(folder / "model.bin")
    return path


IR: dict[str, Maker] = {
    "empty": ir(""),
    "garbage": ir(bytes(range(256)) * 40),
    "not a net": ir("<html/>"),
    "old version": ir('<net name="m" version="7"/>'),
    "no version": ir('<net name="m"/>'),
    "truncated": ir(models.one_layer()[:-30]),
    "not utf-8": ir(b'<net name="\xff\xfe" version="10"/>'),
    "laughs in utf-16": ir(_laughs().encode("utf-16")),
    "billion laughs": ir(_laughs()),
    "external entity": ir('<!DOCTYPE net [<!ENTITY x SYSTEM "file:///etc/passwd">]><net version="10">&x;</net>'),
    "external subset": ir('<!DOCTYPE net SYSTEM "http://localhost/x.dtd"><net version="10"/>'),
    "deep": ir('<net version="10">' + "<a>" * 200_000),
    "many elements": ir('<net version="10">' + "<a/>" * 2_000_000),
    "many layers": ir(
        '<net version="10"><layers>'
        + "".join(f'<layer id="{n}" name="{"n" * 300}" type="Const"/>' for n in range(60_000))
    ),
    "many convolutions": ir(_many(5_000)),
    "many bodies": ir('<net version="10"><layers><layer id="1">' + "<body/>" * 400_000),
    "many edges": ir(
        '<net version="10"><edges>'
        + "".join(f'<edge from-layer="{n}" from-port="0" to-layer="{n}" to-port="0"/>' for n in range(120_000))
    ),
    "many ports": ir(models.one_layer(data_ports=models.ports(*[(1,)] * 5_000))),
    "many dims": ir(models.one_layer(data_ports=models.ports((1,) * 5_000))),
    "many attributes": ir('<net version="10"' + "".join(f' a{n}="1"' for n in range(100_000)) + "/>"),
    "a huge tag": ir('<net version="10" name="' + "x" * 30_000_000 + '"/>'),
    "a huge unfinished tag": ir('<net version="10" name="' + "x" * 30_000_000),
    "a huge file": _sparse,
    "a pipe": _pipe,
    "a pipe of weights": _pipe_of_weights,
    "a folder": lambda folder: folder.with_suffix(".xml"),
    "duplicate layer": ir(models.one_layer(extra_layers=models.layer(1, "Const", ""))),
    "layer id of words": ir(models.one_layer().replace('<layer id="1"', '<layer id="one"')),
    "layer id missing": ir(models.one_layer().replace('<layer id="1"', "<layer")),
    "layer id of 4000 digits": ir(models.one_layer().replace('<layer id="1"', f'<layer id="{"9" * 4000}"')),
    "dim of words": ir(models.one_layer().replace("<dim>4</dim>", "<dim>four</dim>")),
    "dim of a megabyte": ir(models.one_layer().replace("<dim>4</dim>", f"<dim>{'4' * 900_000}</dim>")),
    "no inputs": ir(models.one_layer().replace(f"<input>{models.ports((1, 2, 4, 4), (2, 1, 3, 3))}</input>", "")),
    "rank of data": ir(models.one_layer(data_ports=models.ports((1, 2, 4), (2, 1, 3, 3)))),
    "rank of filter": ir(models.one_layer(data_ports=models.ports((1, 2), (2, 1)))),
    "integers": ir(models.one_layer(data_ports=models.ports((1, 2, 4, 4), (2, 1, 3, 3), precision="I8"))),
    "strides of words": ir(models.one_layer('strides="2,x"')),
    "strides of 0": ir(models.one_layer('strides="0,2"')),
    "strides of 2**63": ir(models.one_layer(f'strides="{2**63},2"')),
    "strides too many": ir(models.one_layer('strides="' + "2," * 150 + '2"')),
    "an endless attribute": ir(models.one_layer('strides="' + "2," * 40_000 + '2"')),
    "dilations of 0": ir(models.one_layer('strides="2,2" dilations="0,1"')),
    "negative pads": ir(models.one_layer('strides="2,2" pads_begin="-1,0"')),
    "auto_pad": ir(models.one_layer('strides="2,2" auto_pad="sometimes"')),
    "no .bin": ir(models.one_layer(), b""),
    "offset behind the end": ir(models.one_layer(const='offset="1" size="72"')),
    "offset of 2**60": ir(models.one_layer(const=f'offset="{2**59}" size="72"')),
    "negative offset": ir(models.one_layer(const='offset="-8" size="72"')),
    "size that does not fit": ir(models.one_layer(const='offset="0" size="71"')),
    "no size": ir(models.one_layer(const='offset="0"')),
    "shape of 2**59": ir(models.one_layer(const=f'element_type="f32" shape="{2**59},4" offset="0" size="{2**61}"')),
    "element type": ir(models.one_layer(const='element_type="nf4" shape="2,1,3,3" offset="0" size="72"')),
    "type of weights": ir(models.one_layer(const='element_type="f16" shape="2,1,3,6" offset="0" size="72"')),
    "shape of weights": ir(models.one_layer(const='element_type="f32" shape="1,2,3,3" offset="0" size="72"')),
    "a cycle": ir(_cycle()),
}


def _onnx_model(**changes: Any) -> Any:
    from onnx import TensorProto, helper

    tensor = TensorProto(name="w", data_type=1, dims=changes.get("dims", [2, 1, 3, 3]))
    if "location" in changes:
        tensor.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            if key in changes:
                tensor.external_data.add(key=key, value=str(changes[key]))
    else:
        tensor.raw_data = changes.get("raw", BLOB)
    tensor.data_type = changes.get("element", 1)
    node = helper.make_node("ConvTranspose", changes.get("inputs", ["x", "w"]), ["y"], "up\x1b[2J")
    node.attribute.extend(changes.get("attributes", [helper.make_attribute("strides", [2, 2])]))
    x = helper.make_tensor_value_info("x", 1, changes.get("data", [1, 2, 4, 4]))
    nodes = [*changes.get("before", []), node]
    tensors = [] if changes.get("drop") else [tensor]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)], tensors))


def onnx_file(**changes: Any) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(_onnx_model(**changes).SerializeToString())
        return path

    return make


def attribute(name: str, value: Any) -> dict[str, Any]:
    from onnx import helper

    return {"attributes": [helper.make_attribute(name, value)]}


def raw(data: bytes) -> Maker:
    def make(folder: Path) -> Path:
        (folder / "model.onnx").write_bytes(data)
        return folder / "model.onnx"

    return make


def _through_a_link(folder: Path) -> Path:
    secret = folder.parent / "secret.bin"
    secret.write_bytes(BLOB)
    (folder / "link.bin").symlink_to(secret)
    return onnx_file(location="link.bin")(folder)


def _through_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return onnx_file(location="w.bin")(folder)


def _field(number: int, payload: bytes) -> bytes:
    """One length-delimited protobuf field."""
    size, length = len(payload), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


def _identity_loop() -> dict[str, Any]:
    from onnx import helper

    return {"before": [helper.make_node("Identity", ["v"], ["w"]), helper.make_node("Identity", ["w"], ["v"])]}


def _onnx_makers() -> dict[str, Maker]:
    pytest.importorskip("onnx")
    return {
        "empty": raw(b""),
        "garbage": raw(bytes(range(256)) * 40),
        "truncated": raw(_onnx_model().SerializeToString()[:-60]),
        "nested groups": raw(b"\x3a" + b"\x0b" * 100_000),
        "many nodes": raw(_field(7, b"\x0a\x00" * 1_000_000)),
        "many empty inputs": raw(_field(7, _field(1, b"\x0a\x00" * 1_000_000))),
        "many convolutions": raw(_field(7, _field(1, b"\x22\x0dConvTranspose") * 5_000)),
        "no weights": onnx_file(drop=True),
        "weights in a loop": onnx_file(drop=True, **_identity_loop()),
        "one input": onnx_file(inputs=["x"]),
        "bias of the data": onnx_file(inputs=["x", "w", "x"]),
        "negative dims": onnx_file(dims=[2, 1, -3, -3]),
        "dims of 2**60": onnx_file(dims=[2**60, 2**60, 3, 3]),
        "many dims": onnx_file(dims=[1] * 1000),
        "too few dims": onnx_file(dims=[2, 9]),
        "short data": onnx_file(raw=BLOB[:-1]),
        "integers": onnx_file(element=7),
        "strings": onnx_file(element=8),
        "rank of data": onnx_file(data=[1, 2, 4]),
        "strides of 0": onnx_file(**attribute("strides", [0, 2])),
        "strides of 2**62": onnx_file(**attribute("strides", [2**62, 2])),
        "many strides": onnx_file(**attribute("strides", [2] * 100_000)),
        "group 0": onnx_file(**attribute("group", 0)),
        "group that does not divide": onnx_file(**attribute("group", 7)),
        "kernel_shape": onnx_file(**attribute("kernel_shape", [5, 5])),
        "auto_pad": onnx_file(**attribute("auto_pad", "SOMETIMES")),
        "odd pads": onnx_file(**attribute("pads", [1, 1, 1])),
        "external: up and out": onnx_file(location="../secret.bin"),
        "external: absolute": onnx_file(location="/etc/passwd"),
        "external: backslash": onnx_file(location="..\\secret.bin"),
        "external: nothing": onnx_file(location=""),
        "external: nul": onnx_file(location="a\0b"),
        "external: missing": onnx_file(location="w.bin"),
        "external: a folder": onnx_file(location="."),
        "external: a link": _through_a_link,
        "external: a pipe": _through_a_pipe,
        "external: device": onnx_file(location="/dev/zero", length=72),
        "external: offset": onnx_file(location="model.onnx", offset=2**62),
        "external: negative offset": onnx_file(location="model.onnx", offset=-1),
        "external: wrong length": onnx_file(location="model.onnx", length=2**40),
    }


def fully(path: Path) -> None:
    """Everything that a client does with a file: read it, resolve its layers, load their weights."""
    for layer in read(path):
        shape = tuple(1 if size is None else size for size in layer.data_shape)
        layer.operator.resolve(shape, layer.filter_shape)
        layer.weights()
        layer.bias()


def one_clear_error(make: Maker, folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    path = make(home)
    before = sorted(file.name for file in folder.rglob("*"))
    with pytest.raises(UnstrideError) as caught:
        fully(path)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    assert sorted(file.name for file in folder.rglob("*")) == before


@pytest.mark.parametrize("name", IR)
def test_ir(name: str, tmp_path: Path) -> None:
    one_clear_error(IR[name], tmp_path)


@pytest.mark.parametrize("name", _onnx_makers())
def test_onnx(name: str, tmp_path: Path) -> None:
    one_clear_error(_onnx_makers()[name], tmp_path)


CHILD = """
import json, pathlib, resource, sys, time
from tests.formats.test_hostile_files import fully
from unstride.errors import UnstrideError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

good, *paths = sys.argv[1:]
fully(pathlib.Path(good))
report = {}
for path in paths:
    before, start = peak(), time.process_time()  # a busy machine must not count
    try:
        fully(pathlib.Path(path))
        outcome = "no error"
    except UnstrideError as error:
        outcome = type(error).__name__
    report[path] = (time.process_time() - start, peak() - before, outcome)
print(json.dumps(report))
"""


@pytest.mark.parametrize("kind", ["ir", "onnx"])
def test_no_hostile_file_takes_a_second_or_64_mebibytes(kind: str, tmp_path: Path) -> None:
    """In a process of its own, because only there a peak means something."""
    makers = IR if kind == "ir" else _onnx_makers()
    paths = []
    for index, make in enumerate(makers.values()):
        folder = tmp_path / str(index)
        folder.mkdir()
        paths.append(str(make(folder)))
    (tmp_path / "good").mkdir()
    good = (ir(models.one_layer()) if kind == "ir" else onnx_file())(tmp_path / "good")
    command = [sys.executable, "-c", CHILD, str(good), *paths]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": _paths()}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name, (seconds, mebibytes, outcome) in zip(makers, json.loads(done.stdout).values(), strict=True):
        assert outcome.endswith("Error"), name
        assert seconds < 1.0, (name, seconds)
        assert mebibytes < 64, (name, mebibytes)


def _paths() -> str:
    return os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])


def test_layer_names_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    from unstride.cli import main

    assert main(["shape", str(onnx_file()(tmp_path))]) == 0
    assert main(["shape", str(onnx_file(dims=[2, 9])(tmp_path))]) == 2
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert "up?[2J" in captured.out
    assert captured.err.count("\n") == 1
    assert "up?[2J" in captured.err
