"use strict";
/* The call on the page written for other libraries. Every text but Keras' takes one filter w [G*ci, co, K...], names its
   inputs x and w (dy and w for the gradient) and leaves the result in y (dx). */
const Code = (() => {
  const listOf = (values) => `[${values.join(", ")}]`;
  const tupleOf = (values) => `(${values.join(", ")}${values.length === 1 ? "," : ""})`;
  const every = (axes, test) => axes.every(test);
  const over = (a) => Unstride.full(a) - a.begin - a.y; // cropped at the end; negative where zeros follow

  /** What all the texts need to know about a call. */
  function facts(call, resolution) {
    const { axes, direction } = resolution;
    const channels = { small: call.groups * call.ci, large: call.groups * call.co };
    const column = (name) => axes.map((a) => a[name]);
    const data = direction === "scatter" ? ["N", channels.small, ...column("x")] : ["N", channels.large, ...column("y")];
    return {
      call, axes, direction, groups: call.groups, rank: axes.length, differs: resolution.other?.differs ?? false,
      kernel: column("kernel"), stride: column("stride"), dilation: column("dilation"), begin: column("begin"), y: column("y"),
      end: axes.map(over), data, filter: [channels.small, call.co, ...column("kernel")], channels,
      comment: `# ${direction === "scatter" ? "x" : "dy"}: ${listOf(data)}, w: ${listOf([channels.small, call.co, ...column("kernel")])}`,
    };
  }

  // ------------------------------------------------------------------------------------------------------- unstride

  const padWord = (call) => (call.auto_pad === "explicit" ? "none" : call.auto_pad);

  function unstride(f) {
    const { call } = f;
    const pads = `pads_begin=${listOf(call.pads_begin)}, pads_end=${listOf(call.pads_end)}`;
    const lists = `strides=${listOf(call.strides)}, ${pads}, dilations=${listOf(call.dilations)}`;
    const shape = call.output_shape === null ? "" : `, output_shape=${listOf(call.output_shape)}`;
    const rules = call.rules === "spec" ? "" : `, rules="${call.rules}"`;
    const op = call.output_padding.some(Boolean) ? `, output_padding=${listOf(call.output_padding)}` : "";
    if (call.dialect === "openvino") {
      const group = f.groups > 1;
      const name = group ? "GroupConvolutionBackpropData" : "ConvolutionBackpropData";
      const w = group ? `w.reshape(${f.groups}, ${call.ci}, ${call.co}, ${f.kernel.join(", ")})` : "w";
      const auto = call.auto_pad === "explicit" ? "" : `, auto_pad="${call.auto_pad}"`;
      return python(f, "from unstride import openvino", [
        `op = openvino.${name}(${lists}${auto}${op}${rules})`, `y = op(x, ${w}${shape})`,
      ]);
    }
    if (call.dialect.startsWith("onednn")) {
      const name = call.dialect.split(".")[1];
      const format = name === "ConvolutionBackpropData" ? "OIX" : "IOX";
      const formats = `groups=${f.groups}, data_format="NCX", filter_format="${format}"`;
      const [result, data] = f.direction === "scatter" ? ["y", "x"] : ["dx", "dy"];
      return python(f, "from unstride import onednn", [
        `op = onednn.${name}(${lists}, auto_pad="${padWord(call)}"${op}, ${formats}${rules})`, `${result} = op(${data}, w${shape})`,
      ]);
    }
    if (call.dialect === "onnx") return python(f, "from unstride import onnx", [`op = onnx.ConvTranspose(${onnxAttributes(f)})`, "y = op(x, w)"]);
    if (call.dialect === "torch") {
      const values = `stride=${tupleOf(f.stride)}, padding=${tupleOf(call.pads_begin)}, output_padding=${tupleOf(call.output_padding)}`;
      return python(f, "import unstride", [`y = unstride.conv_transpose(x, w, ${values}, groups=${f.groups}, dilation=${tupleOf(f.dilation)})`]);
    }
    return unstrideWindow(f);
  }

  /** A bare window: OpenVINO's operator, or oneDNN's gradient, can say it unless it begins before the first tap. */
  function unstrideWindow(f) {
    if (f.direction === "gather" && every(f.axes, (a) => a.begin >= 0 && over(a) > -a.stride)) {
      const pads = { ...explicitPads(f), output_padding: f.begin.map(() => 0) };
      return unstride({ ...f, call: { ...f.call, ...pads, dialect: "onednn.ConvTransposeBackpropData", rules: "spec", output_shape: null } });
    }
    if (f.direction === "gather" || !every(f.axes, (a) => a.begin >= 0)) {
      return `# This window has no spelling as one operator.\n# Its problem line, for unstride explain:\n# ${problemLine(f)}`;
    }
    const as = { ...f.call, dialect: "openvino", rules: "spec", output_shape: null, ...explicitPads(f) };
    return unstride({ ...f, call: as });
  }

  function problemLine(f) {
    const join = (values) => values.join("x");
    const sizes = `x${join(f.axes.map((a) => a.x))} k${join(f.kernel)} s${join(f.stride)} d${join(f.dilation)} b${join(f.begin)} y${join(f.y)}`;
    return `${f.direction} f32 NCX GIOX n1 g${f.groups} i${f.call.ci} o${f.call.co} ${sizes}`;
  }

  const explicitPads = (f) => ({
    auto_pad: "explicit", strides: f.stride, dilations: f.dilation, pads_begin: f.begin,
    pads_end: f.end.map((e) => Math.max(e, 0)), output_padding: f.end.map((e) => Math.max(-e, 0)),
  });

  const python = (f, imports, lines) => [imports, "", f.comment, ...lines].join("\n");

  // ---------------------------------------------------------------------------------------------------------- torch

  function torch(f) {
    const imports = "import torch.nn.functional as F";
    const sides = (low, high) => tupleOf(f.axes.flatMap((_, n) => [low[n], high[n]].reverse()).reverse());
    const common = `stride=${tupleOf(f.stride)}, dilation=${tupleOf(f.dilation)}, groups=${f.groups}`;
    if (f.direction === "gather") {
      const direct = every(f.axes, (a) => a.begin >= 0 && Math.floor((a.y + 2 * a.begin - Unstride.extent(a)) / a.stride) + 1 === a.x);
      const body = direct
        ? [`dx = F.conv${f.rank}d(dy, w, padding=${tupleOf(f.begin)}, ${common})`]
        : [`padded = F.pad(dy, ${sides(f.begin, f.end)})  # a negative amount crops`, `dx = F.conv${f.rank}d(padded, w, ${common})`];
      return python(f, imports, body);
    }
    const extra = f.axes.map((a) => a.y - Unstride.full(a) + 2 * a.begin);
    const direct = every(f.axes, (a, n) => a.begin >= 0 && extra[n] >= 0 && extra[n] < Math.max(a.stride, a.dilation));
    const body = direct
      ? [`y = F.conv_transpose${f.rank}d(x, w, padding=${tupleOf(f.begin)}, output_padding=${tupleOf(extra)}, ${common})`]
      : [
        `full = F.conv_transpose${f.rank}d(x, w, ${common})`,
        `y = F.pad(full, ${sides(f.begin.map((b) => -b), f.end.map((e) => -e))})  # a negative amount crops`,
      ];
    return python(f, imports, body);
  }

  // ------------------------------------------------------------------------------------------------------------ JAX

  function jax(f) {
    const letters = "DHW".slice(3 - f.rank);
    const layout = `dimension_numbers=("NC${letters}", "OI${letters}", "NC${letters}"), feature_group_count=${f.groups}`;
    const pairs = (low, high) => `[${f.axes.map((_, n) => `(${low[n]}, ${high[n]})`).join(", ")}]`;
    if (f.direction === "gather") {
      return python(f, "from jax import lax", [
        `dx = lax.conv_general_dilated(`, `    dy, w, window_strides=${tupleOf(f.stride)}, padding=${pairs(f.begin, f.end)},`,
        `    rhs_dilation=${tupleOf(f.dilation)}, ${layout})`,
      ]);
    }
    const reach = f.axes.map((a) => Unstride.extent(a) - 1);
    const axes = tupleOf(f.axes.map((_, n) => n - f.rank));
    const flip = `jnp.flip(w, ${axes})`;
    const swapped = f.groups === 1
      ? [`flipped = ${flip}.swapaxes(0, 1)  # [co, ci, K...]`]
      : [
        `flipped = ${flip}.reshape(${f.groups}, ${f.call.ci}, ${f.call.co}, ${f.kernel.join(", ")})`,
        `flipped = flipped.swapaxes(1, 2).reshape(${f.channels.large}, ${f.call.ci}, ${f.kernel.join(", ")})`,
      ];
    const padding = pairs(f.begin.map((b, n) => reach[n] - b), f.end.map((e, n) => reach[n] - e));
    return python(f, "import jax.numpy as jnp\nfrom jax import lax", [
      ...swapped, "y = lax.conv_general_dilated(", `    x, flipped, window_strides=${tupleOf(f.stride.map(() => 1))}, padding=${padding},`,
      `    lhs_dilation=${tupleOf(f.stride)}, rhs_dilation=${tupleOf(f.dilation)}, ${layout})`,
    ]);
  }

  // ----------------------------------------------------------------------------------------------------------- ONNX

  function onnxAttributes(f) {
    const { call } = f;
    const words = [`strides=${listOf(call.strides)}`, `dilations=${listOf(call.dilations)}`, `group=${f.groups}`];
    if (call.auto_pad === "explicit") words.splice(1, 0, `pads=${listOf([...call.pads_begin, ...call.pads_end])}`);
    else words.push(`auto_pad="${call.auto_pad.toUpperCase()}"`);
    if (call.output_padding.some(Boolean)) words.push(`output_padding=${listOf(call.output_padding)}`);
    if (call.output_shape !== null) words.push(`output_shape=${listOf(call.output_shape)}`);
    return words.join(", ");
  }

  function onnx(f) {
    if (f.call.dialect === "onnx") return onnxModel(f, "x", "y", [`helper.make_node("ConvTranspose", ["x", "w"], ["y"], ${onnxAttributes(f)})`]);
    const common = `strides=${listOf(f.stride)}, dilations=${listOf(f.dilation)}, group=${f.groups}`;
    if (f.direction === "gather") {
      const [low, high] = [f.begin, f.end];
      const direct = every([...low, ...high], (v) => v >= 0);
      const nodes = direct
        ? [`helper.make_node("Conv", ["dy", "w"], ["dx"], pads=${listOf([...low, ...high])}, ${common})`]
        : [padNode("dy", "padded", low, high), `helper.make_node("Conv", ["padded", "w"], ["dx"], ${common})`];
      return onnxModel(f, "dy", "dx", nodes, direct ? null : [low, high]);
    }
    const direct = every(f.axes, (a, n) => a.begin >= 0 && f.end[n] > -a.stride);
    if (direct) {
      const as = { ...f.call, output_shape: null, ...explicitPads(f) };
      return onnxModel(f, "x", "y", [`helper.make_node("ConvTranspose", ["x", "w"], ["y"], ${onnxAttributes({ ...f, call: as })})`]);
    }
    const [low, high] = [f.begin.map((b) => -b), f.end.map((e) => -e)];
    const nodes = [`helper.make_node("ConvTranspose", ["x", "w"], ["full"], ${common})`, padNode("full", "y", low, high)];
    return onnxModel(f, "x", "y", nodes, [low, high]);
  }

  const padNode = (from, to) => `helper.make_node("Pad", ["${from}", "pads"], ["${to}"])  # a negative amount crops`;

  function onnxModel(f, data, result, nodes, pads = null) {
    const dims = (sizes) => `[${sizes.map((v) => (v === "N" ? '"N"' : v)).join(", ")}]`;
    const channels = f.direction === "scatter" ? f.channels.large : f.channels.small;
    const sizes = f.direction === "scatter" ? f.y : f.axes.map((a) => a.x);
    const flat = pads && [0, 0, ...pads[0], 0, 0, ...pads[1]];
    const constant = flat ? [`pads = helper.make_tensor("pads", TensorProto.INT64, [${flat.length}], ${listOf(flat)})`] : [];
    return [
      "from onnx import TensorProto, helper", "", f.comment, "nodes = [", ...nodes.map(trailingComma), "]", ...constant,
      `inputs = [helper.make_tensor_value_info("${data}", TensorProto.FLOAT, ${dims(f.data)}),`,
      `          helper.make_tensor_value_info("w", TensorProto.FLOAT, ${dims(f.filter)})]`,
      `outputs = [helper.make_tensor_value_info("${result}", TensorProto.FLOAT, ${dims(["N", channels, ...sizes])})]`,
      `graph = helper.make_graph(nodes, "call", inputs, outputs${flat ? ", [pads]" : ""})`,
      'model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)',
    ].join("\n");
  }
  const trailingComma = (node) => `    ${node.replace(/\)(?=  #|$)/, "),")}`;

  // ------------------------------------------------------------------------------------------------------- OpenVINO

  function openvino(f) {
    const w = (kind) => (f.groups === 1 ? "w" : `w.reshape(${f.groups}, ${kind})`);
    const prefix = f.groups === 1 ? "" : "group_";
    const head = (data) => [
      `${data}_in = ops.parameter(${listOf([-1, ...f.data.slice(1)])}, np.float32)`,
    ];
    const imports = "import numpy as np\nimport openvino as ov\nimport openvino.opset13 as ops";
    const tail = (data, result) => [
      `${result} = ov.compile_model(ov.Model([node], [${data}_in]), "CPU")(${data})[0]`,
    ];
    if (f.direction === "gather") {
      const direct = every([...f.begin, ...f.end], (v) => v >= 0);
      const pads = direct ? `${listOf(f.begin)}, ${listOf(f.end)}` : `${listOf(f.begin.map(() => 0))}, ${listOf(f.begin.map(() => 0))}`;
      const body = direct ? [] : [openvinoPad("dy_in", "padded", f.begin, f.end)];
      const filter = w(`${f.call.ci}, ${f.call.co}, ${f.kernel.join(", ")}`);
      const node = `node = ops.${prefix}convolution(${direct ? "dy_in" : "padded"}, ${filter}, ${listOf(f.stride)}, ${pads}, ${listOf(f.dilation)})`;
      return python(f, imports, [...head("dy"), ...body, node, ...tail("dy", "dx")]);
    }
    const filter = w(`${f.call.ci}, ${f.call.co}, ${f.kernel.join(", ")}`);
    const call = openvinoCall(f);
    const cropped = every(f.begin, (b) => b >= 0) ? [] : [openvinoPad("node", "node", f.begin.map((b) => -b), f.end.map((e) => -e))];
    return python(f, imports, [...head("x"), `node = ops.${prefix}convolution_backprop_data(x_in, ${filter}, ${call})`, ...cropped, ...tail("x", "y")]);
  }

  const openvinoPad = (from, to, low, high) =>
    `${to} = ops.pad(${from}, ${listOf([0, 0, ...low])}, ${listOf([0, 0, ...high])}, "constant")  # a negative amount crops`;

  /** As written where the engine then gives this very window, else the window as explicit pads. */
  function openvinoCall(f) {
    const { call } = f;
    const engine = call.dialect === "openvino" && (call.rules === "runtime" || !f.differs);
    const droppedPads = f.groups > 1 && call.auto_pad === "explicit" && call.output_shape !== null; // by its Python API
    const negative = f.begin.some((b) => b < 0);
    const none = f.begin.map(() => 0);
    const plain = { pads_begin: none, pads_end: none, output_padding: none, auto_pad: "explicit" };
    const as = engine && !droppedPads && !negative ? call : { ...(negative ? plain : explicitPads(f)), output_shape: null };
    const pads = `pads_begin=${listOf(as.pads_begin)}, pads_end=${listOf(as.pads_end)}, dilations=${listOf(f.dilation)}`;
    const shape = as.output_shape === null ? "" : `, output_shape=ops.constant(np.array(${listOf(as.output_shape)}))`;
    return `strides=${listOf(f.stride)}${shape}, ${pads}, auto_pad="${as.auto_pad}", output_padding=${listOf(as.output_padding)}`;
  }

  // --------------------------------------------------------------------------------------------------------- oneDNN

  function onednn(f) {
    const { call } = f;
    const own = call.dialect.startsWith("onednn");
    if (!own && f.begin.some((b) => b < 0)) return "// oneDNN Graph takes no window that begins before the first tap.\n// Compute with pads 0 and pad the result.";
    const name = own ? call.dialect.split(".")[1] : f.direction === "scatter" ? "ConvTranspose" : "ConvTransposeBackpropData";
    const kind = { ConvolutionBackpropData: "ConvolutionBackwardData", ConvTransposeBackpropData: "ConvTransposeBackwardData" }[name] ?? name;
    const as = own ? call : { ...call, ...explicitPads(f), output_shape: null };
    const braces = (values) => `{${values.join(", ")}}`;
    const ints = (key, values) => `node.set_attr<std::vector<int64_t>>(op::attr::${key}, ${braces(values)});`;
    const lines = [ints("strides", as.strides), ints("pads_begin", as.pads_begin), ints("pads_end", as.pads_end), ints("dilations", as.dilations)];
    if (as.auto_pad !== "explicit") lines.push(`node.set_attr<std::string>(op::attr::auto_pad, "${as.auto_pad.toUpperCase()}");`);
    if (as.output_padding.some(Boolean)) lines.push(ints("output_padding", as.output_padding));
    if (as.output_shape) lines.push(ints("dst_shape", ["N", f.channels.large, ...as.output_shape]));
    lines.push(`node.set_attr<int64_t>(op::attr::groups, ${f.groups});`, 'node.set_attr<std::string>(op::attr::data_format, "NCX");');
    lines.push(`node.set_attr<std::string>(op::attr::weights_format, "${name === "ConvolutionBackpropData" ? "OIX" : "IOX"}");`);
    const note = own && call.rules === "spec" && f.differs ? ["// the engine follows its runtime rules, not the document's"] : [];
    return [
      "#include <oneapi/dnnl/dnnl_graph.hpp>", "using namespace dnnl::graph;", "", f.comment.replace("#", "//"), ...note,
      `op node(0, op::kind::${kind}, "node");`, ...lines,
    ].join("\n");
  }

  // ---------------------------------------------------------------------------------------------------------- Keras

  function keras(f) {
    if (f.stride.some((s) => s > 1) && f.dilation.some((d) => d > 1)) {
      return "# Keras allows no stride above 1 together with a dilation above 1.";
    }
    if (f.direction === "gather") return kerasGradient(f);
    if (f.groups > 1) return "# Keras' transposed convolutions know no groups:\n# call one layer per group and concatenate the results.";
    const sizes = f.axes.map((a) => a.x * a.stride + Math.max(Unstride.extent(a) - a.stride, 0));
    const start = f.begin.map((b) => Math.max(b, 0));
    const before = f.begin.map((b) => Math.max(-b, 0));
    const after = f.axes.map((a, n) => Math.max(a.begin + a.y - sizes[n], 0));
    const lines = [
      `layer = keras.layers.Conv${f.rank}DTranspose(${f.call.co}, ${tupleOf(f.kernel)}, strides=${tupleOf(f.stride)}, ` +
      `padding="valid", dilation_rate=${tupleOf(f.dilation)}, use_bias=False)`, "y = layer(x)",
    ];
    if ([...before, ...after].some(Boolean)) {
      lines.push(`y = keras.ops.pad(y, [[0, 0], ${f.axes.map((_, n) => listOf([before[n], after[n]])).join(", ")}, [0, 0]])`);
    }
    const cut = f.axes.map((a, n) => `${start[n]}:${start[n] + a.y}`);
    if (f.axes.some((a, n) => start[n] || a.y !== sizes[n] + before[n] + after[n])) lines.push(`y = y[:, ${cut.join(", ")}, :]`);
    return kerasText(["N", ...f.axes.map((a) => a.x), f.call.ci], f, lines, "x");
  }

  function kerasGradient(f) {
    if ([...f.begin, ...f.end].some((v) => v < 0)) return "# Keras pads with no negative amounts: slice dy first.";
    const pads = f.axes.map((_, n) => listOf([f.begin[n], f.end[n]])).join(", ");
    const groups = f.groups > 1 ? `, groups=${f.groups}` : "";
    return kerasText(["N", ...f.y, f.channels.large], f, [
      `dy = keras.ops.pad(dy, [[0, 0], ${pads}, [0, 0]])`,
      `layer = keras.layers.Conv${f.rank}D(${f.channels.small}, ${tupleOf(f.kernel)}, strides=${tupleOf(f.stride)}, ` +
      `dilation_rate=${tupleOf(f.dilation)}${groups}, use_bias=False)`, "dx = layer(dy)",
    ], "dy");
  }

  const kerasText = (shape, f, lines, name) => {
    const last = f.direction === "scatter" ? [f.call.co, f.call.ci] : [f.call.co, f.channels.small];
    const kernel = `# its kernel is w with the axes ${listOf([...f.kernel.map((_, n) => n + 2), 1, 0])}: ${listOf([...f.kernel, ...last])}`;
    return ["import keras", "", `# ${name}: ${listOf(shape)}, channels last`, kernel, ...lines].join("\n");
  };

  /** Long calls get their arguments on lines of their own, long remarks a line above. */
  function wrapped(text) {
    const width = 92;
    return text.split("\n").flatMap((line) => {
      const [, indent, code, remark] = line.match(/^(\s*)(.*?)(?:  (#.*))?$/);
      if (line.length <= width || !code) return [line];
      const above = remark ? [indent + remark] : [];
      const call = code.match(/^([^()]*\()(.*)(\)[,\])]*(?:\[\d\])?)$/);
      if (!call || indent.length + code.length <= width) return [...above, indent + code];
      return [...above, indent + call[1], ...filled(call[2], `${indent}    `, width), indent + call[3]];
    }).join("\n");
  }

  /** The arguments, as many to a line as fit; a comma inside brackets is no place to break. */
  function filled(inner, indent, width) {
    const lines = [indent];
    let depth = 0, word = "";
    const flush = (end) => {
      const last = lines.at(-1);
      if (last !== indent && last.length + word.length + 2 > width) lines.push(indent);
      lines[lines.length - 1] += `${lines.at(-1) === indent ? "" : " "}${word.trim()}${end}`;
      word = "";
    };
    for (const letter of inner) {
      depth += "([{".includes(letter) ? 1 : ")]}".includes(letter) ? -1 : 0;
      if (letter === "," && depth === 0) flush(",");
      else word += letter;
    }
    flush("");
    return lines;
  }

  /** [name, text] for each library. */
  function texts(call, resolution) {
    const f = facts(call, resolution);
    const writers = { unstride, OpenVINO: openvino, oneDNN: onednn, ONNX: onnx, torch, Keras: keras, JAX: jax };
    const apart = f.axes.some((a) => a.begin >= Unstride.full(a) || a.begin + a.y <= 0);
    const nothing = "# The window lies outside the reach of the taps: every element of the result is zero.";
    return Object.entries(writers).map(([name, write]) => [name, apart && name !== "unstride" ? nothing : wrapped(write(f))]);
  }

  return { texts };
})();
