"""The `.xml` half of OpenVINO IR as plain values, read by expat with every quantity bounded.

No DOCTYPE and no entity is ever accepted, nothing recurses, and only what transposed convolutions and the constants
before them need is kept, so that a file of tens of megabytes costs a few. Bodies of TensorIterator, Loop and If are
graphs of their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from unstride.errors import FormatError
from unstride.formats.blob import open_regular

__all__ = ["Graph", "Node", "Port", "read_graphs"]

MAX_FILE_BYTES = 64 << 20
MAX_ELEMENTS = 500_000
MAX_DEPTH = 64
MAX_ATTRIBUTES = 128
MAX_NODES = 50_000
MAX_EDGES = 100_000
MAX_PORTS = 64
MAX_DIMS = 32
MAX_NAME = 250
MAX_VALUE = 400
# expat before 2.6 parses a token again for every piece of it that arrives; a bound keeps that from going quadratic.
MAX_TOKEN_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18

# Only these kinds keep their attributes and ports.
TRANSPOSED_KINDS = ("ConvolutionBackpropData", "GroupConvolutionBackpropData")
FOLDED_KINDS = ("Const", "Convert", "Reshape", "Transpose", "Multiply", "Subtract", "Add")
_KEPT = frozenset(TRANSPOSED_KINDS + FOLDED_KINDS)
_KEPT_ATTRIBUTES = (
    *("strides", "dilations", "pads_begin", "pads_end", "auto_pad", "output_padding"),
    *("element_type", "shape", "offset", "size", "destination_type", "special_zero", "auto_broadcast"),
)


@dataclass(slots=True)
class Port:
    """An input or output of a layer; a dimension the file leaves open is None."""

    id: int
    precision: str
    dims: list[int | None] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """A `<layer>`."""

    id: int
    name: str
    kind: str
    attributes: dict[str, str] = field(default_factory=dict)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)


@dataclass(slots=True)
class Graph:
    """The layers of the net or of one body; `edges` leads from an input port to the output port that feeds it."""

    prefix: str = ""
    nodes: dict[int, Node] = field(default_factory=dict)
    edges: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def source(self, node: Node, index: int) -> Node | None:
        """The layer that feeds input `index`, or None."""
        if index >= len(node.inputs):
            return None
        origin = self.edges.get((node.id, node.inputs[index].id))
        return None if origin is None else self.nodes.get(origin[0])


def read_graphs(path: Path) -> list[Graph]:
    """The net and the bodies inside it; a FormatError for anything else."""
    reader = _Reader(path)
    with open_regular(path) as (descriptor, length):
        if length > MAX_FILE_BYTES:
            raise FormatError(path.name, f"{length} bytes", f"more than {MAX_FILE_BYTES >> 20} MiB of XML are not read")
        fed = 0
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            fed += len(chunk)
            reader.feed(chunk, fed)
    return reader.close()


class _Reader:
    """The expat handlers: a stack of open elements, a stack of open graphs, a stack of open layers."""

    def __init__(self, path: Path) -> None:
        self.file = path.name
        self.graphs: list[Graph] = []
        self.open_graphs: list[Graph] = []
        self.open_nodes: list[Node] = []
        self.tags: list[str] = []
        self.elements = self.node_count = self.edge_count = 0
        self.ports: list[Port] | None = None
        self.text: list[str] | None = None
        self.parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.characters
        parser.StartDoctypeDeclHandler = self.refuse_doctype
        parser.EntityDeclHandler = self.refuse_doctype

    def feed(self, chunk: bytes, fed: int) -> None:
        self._parse(chunk, False)
        if fed - self.parser.CurrentByteIndex > MAX_TOKEN_BYTES + _CHUNK_BYTES:
            self.fail("one tag", f"is longer than {MAX_TOKEN_BYTES >> 20} MiB")

    def close(self) -> list[Graph]:
        self._parse(b"", True)
        if not self.graphs:
            self.fail("the root element", "is not <net>")
        return self.graphs

    def _parse(self, chunk: bytes, final: bool) -> None:
        try:
            self.parser.Parse(chunk, final)
        except expat.ExpatError as error:
            reason = expat.errors.messages.get(error.code, str(error.code))
            self.fail(f"line {error.lineno}", f"the XML is broken ({reason})")
        except UnicodeError:
            self.fail("the text", "is not UTF-8")

    def fail(self, given: str, rule: str) -> NoReturn:
        raise FormatError(self.file, given, rule, "save the model again with openvino.save_model") from None

    def refuse_doctype(self, *_: object) -> None:
        raise FormatError(self.file, "a DOCTYPE or an entity", "OpenVINO IR has none, and they are a known attack")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > MAX_ELEMENTS or len(self.tags) >= MAX_DEPTH or len(attributes) > MAX_ATTRIBUTES:
            self.fail(f"<{tag[:40]}>", "too many elements, levels or attributes")
        parent = self.tags[-1] if self.tags else ""
        self.tags.append(tag)
        if not self.graphs:
            self.open_net(tag, attributes)
        elif tag == "layer":
            self.open_layer(attributes)
        elif tag == "edge" and parent == "edges" and self.open_graphs:
            self.add_edge(attributes)
        elif self.open_nodes:
            self.inside_layer(tag, parent, attributes)

    def open_net(self, tag: str, attributes: dict[str, str]) -> None:
        if tag != "net":
            self.fail(f"<{tag[:40]}>", "the root of OpenVINO IR is <net>")
        if attributes.get("version") not in ("10", "11"):
            self.fail(f"net version {attributes.get('version', 'missing')[:20]}", "versions 10 and 11 are read")
        self.open_graph("")

    def open_graph(self, prefix: str) -> None:
        self.count_node()
        graph = Graph(prefix)
        self.graphs.append(graph)
        self.open_graphs.append(graph)

    def open_layer(self, attributes: dict[str, str]) -> None:
        self.count_node()
        identity = self.integer(attributes.get("id"), "layer id")
        graph = self.open_graphs[-1]
        if identity in graph.nodes:
            self.fail(f"layer id {identity}", "appears twice")
        name = (graph.prefix + attributes.get("name", str(identity)))[:MAX_NAME]
        node = Node(identity, name, attributes.get("type", ""))
        graph.nodes[identity] = node
        self.open_nodes.append(node)

    def count_node(self) -> None:
        self.node_count += 1
        if self.node_count > MAX_NODES:
            self.fail("<layer>", f"more than {MAX_NODES} of them")

    def inside_layer(self, tag: str, parent: str, attributes: dict[str, str]) -> None:
        node = self.open_nodes[-1]
        if tag == "body" or tag.endswith("_body"):
            self.open_graph(f"{node.name}/")
        elif node.kind not in _KEPT:
            return
        elif tag == "data" and parent == "layer":
            node.attributes = {key: attributes[key] for key in _KEPT_ATTRIBUTES if key in attributes}
            if any(len(value) > MAX_VALUE for value in node.attributes.values()):
                self.fail(f"layer {node.name}", f"has an attribute of more than {MAX_VALUE} characters")
        elif tag in ("input", "output") and parent == "layer":
            self.ports = node.inputs if tag == "input" else node.outputs
        elif tag == "port" and self.ports is not None:
            if len(self.ports) >= MAX_PORTS:
                self.fail(f"layer {node.name}", f"has more than {MAX_PORTS} ports")
            self.ports.append(Port(self.integer(attributes.get("id"), "port id"), attributes.get("precision", "")))
        elif tag == "dim" and parent == "port" and self.ports:
            self.text = []

    def characters(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data[:32])
            if len(self.text) > 8:
                self.fail("<dim>", "is not an integer")

    def end(self, tag: str) -> None:
        self.tags.pop()
        if tag == "dim" and self.text is not None and self.ports:
            size = self.integer("".join(self.text).strip(), "dim")
            dims = self.ports[-1].dims
            if len(dims) >= MAX_DIMS:
                self.fail("<port>", f"has more than {MAX_DIMS} dimensions")
            dims.append(size if size >= 0 else None)
            self.text = None
        elif tag in ("input", "output"):
            self.ports = None
        elif tag == "layer" and self.open_nodes:
            self.open_nodes.pop()
        elif self.open_graphs and self.open_nodes and (tag == "body" or tag.endswith("_body")):
            self.open_graphs.pop()

    def add_edge(self, attributes: dict[str, str]) -> None:
        self.edge_count += 1
        if self.edge_count > MAX_EDGES:
            self.fail("<edge>", f"more than {MAX_EDGES} of them")
        names = ("to-layer", "to-port", "from-layer", "from-port")
        to_layer, to_port, from_layer, from_port = (self.integer(attributes.get(name), name) for name in names)
        self.open_graphs[-1].edges[to_layer, to_port] = (from_layer, from_port)

    def integer(self, text: str | None, what: str) -> int:
        digits = (text or "").removeprefix("-")
        if text is None or len(digits) > 18 or not (digits.isascii() and digits.isdigit()):
            self.fail(f"{what} {(text or 'missing')[:40]!r}", "must be an integer")
        return int(text)
