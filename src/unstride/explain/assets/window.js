"use strict";
/* The arithmetic of the page: what unstride.dialects and unstride.explain.axis say, in JavaScript.
   No document, no drawing: the tests run this file against Python over thousands of configurations. */
const Unstride = (() => {
  const MAX_EXTENT = 2 ** 31 - 1;
  const mod = (a, b) => ((a % b) + b) % b;
  const div = (a, b) => (a - mod(a, b)) / b; // floor division, exact for integers
  const ceilDiv = (a, b) => -div(-a, b);
  const gcd = (a, b) => (b ? gcd(b, a % b) : a);

  /** A call that the document or the engine refuses: the field, what is wrong, and a fix. */
  class Refusal extends Error {
    constructor(field, rule, fix = "") {
      super(`${field}: ${rule}${fix ? `. Fix: ${fix}` : ""}.`);
      this.field = field;
    }
  }

  // ------------------------------------------------------------------------------------------------------- one axis
  // An axis is { x, kernel, stride, dilation, begin, y }; positions f count from the first that a tap can reach.

  const extent = (a) => (a.kernel - 1) * a.dilation + 1;
  const full = (a) => a.stride * (a.x - 1) + extent(a);

  /** The inverse of `value` modulo `modulus`, by Euclid; 0 for modulus 1. */
  function inverse(value, modulus) {
    let [r0, r1, s0, s1] = [modulus, mod(value, modulus), 0, 1];
    while (r1) {
      const quotient = div(r0, r1);
      [r0, r1, s0, s1] = [r1, r0 - quotient * r1, s1, s0 - quotient * s1];
    }
    return mod(s0, modulus);
  }

  /** The taps of every position with this residue modulo the stride: { first, step, count }. */
  function phaseTaps(a, residue) {
    const common = gcd(a.stride, a.dilation);
    if (residue % common) return { first: 0, step: 1, count: 0 };
    const step = a.stride / common;
    const product = BigInt(residue / common) * BigInt(inverse(a.dilation / common, step));
    const first = Number(product % BigInt(step));
    return { first, step, count: Math.max(0, ceilDiv(a.kernel - first, step)) };
  }

  /** The taps that reach a position, each from one existing input: { first, step, count }. */
  function taps(a, position) {
    const phase = phaseTaps(a, mod(position, a.stride));
    if (!phase.count) return phase;
    const lowest = Math.max(0, ceilDiv(position - a.stride * (a.x - 1), a.dilation));
    const highest = Math.min(a.kernel - 1, div(position, a.dilation));
    const first = phase.first + phase.step * Math.max(0, ceilDiv(lowest - phase.first, phase.step));
    return { first, step: phase.step, count: Math.max(0, div(highest - first, phase.step) + 1) };
  }

  /** The taps that join x[i] to a position inside the window. */
  function reads(a, i) {
    const first = Math.max(0, ceilDiv(a.begin - i * a.stride, a.dilation));
    const last = Math.min(a.kernel - 1, div(a.begin + a.y - 1 - i * a.stride, a.dilation));
    return { first, step: 1, count: Math.max(0, last - first + 1) };
  }

  const list = (progression, limit = 64) =>
    Array.from({ length: Math.min(progression.count, limit) }, (_, n) => progression.first + n * progression.step);

  const source = (a, position, tap) => (position - tap * a.dilation) / a.stride;

  /** [fewest, most] taps of a position far from the borders. */
  function overlap(a) {
    const common = gcd(a.stride, a.dilation);
    const step = a.stride / common;
    return [common > 1 ? 0 : div(a.kernel, step), ceilDiv(a.kernel, step)];
  }

  /** { verdict: "even" | "uneven" | "holes", least, most, wish } over all axes. */
  function diagnose(axes) {
    const product = (values) => values.reduce((a, b) => a * b, 1);
    const least = product(axes.map((a) => overlap(a)[0]));
    const most = product(axes.map((a) => overlap(a)[1]));
    const verdict = least === most ? "even" : least === 0 ? "holes" : "uneven";
    const shared = axes.some((a) => gcd(a.stride, a.dilation) > 1);
    return { verdict, least, most, shared, wish: axes.map((a) => ceilDiv(a.kernel, a.stride) * a.stride) };
  }

  // ---------------------------------------------------------------------------------------------------------- rules
  // A rule takes { size, wanted, kernel, stride, dilation, pb, pe, op, ke, full, index } and returns [begin, size].

  const explicit = (a) => [a.pb, a.full - a.pb - a.pe + a.op];
  const noPads = (a) => [0, a.full + a.op];
  const total = (a) => a.full - a.wanted + a.op;
  const lower = (a, t) => [div(t, 2), a.wanted];
  const upper = (a, t) => [t - div(t, 2), a.wanted];

  const openvino = {
    "openvino.explicit": explicit,
    "openvino.auto": noPads,
    "openvino.spec.halves": (a) => lower(a, total(a)),
    "openvino.spec.same_upper": (a) => upper(a, total(a)),
    "openvino.runtime.explicit": (a) => [a.pb, a.wanted],
    "openvino.runtime.valid": (a) => [0, a.wanted],
    "openvino.runtime.same_lower": (a) => lower(a, Math.max(0, total(a))),
    "openvino.runtime.same_upper": (a) => upper(a, Math.max(0, total(a))),
  };
  function openvinoRule(rules, pad, sized) {
    if (!sized) return pad === "explicit" ? "openvino.explicit" : "openvino.auto";
    if (rules === "runtime") return `openvino.runtime.${pad}`;
    return pad === "same_upper" ? "openvino.spec.same_upper" : "openvino.spec.halves";
  }

  function requireConvolution(a, pads) {
    if (div(a.wanted + pads - a.ke, a.stride) + 1 === a.size) return;
    const least = a.full - pads;
    const fix = `ask for a size from ${Math.max(least, 0)} to ${least + a.stride - 1}`;
    throw new Refusal("output_shape", `a convolution of size ${a.wanted} on axis ${a.index} does not give ${a.size}`, fix);
  }
  function backpropSame(a) {
    if (ceilDiv(a.wanted, a.stride) !== a.size) {
      const fix = `ask for a size from ${(a.size - 1) * a.stride + 1} to ${a.size * a.stride}`;
      throw new Refusal("output_shape", `SAME needs ceil(Y/stride) == ${a.size} on axis ${a.index}`, fix);
    }
    return Math.max(0, a.ke - (a.wanted % a.stride || a.stride));
  }
  const backprop = {
    "onednn.backprop.none": (a) => (requireConvolution(a, a.pb + a.pe), [a.pb, a.wanted]),
    "onednn.backprop.spec.halves": (a) => lower(a, total(a)),
    "onednn.backprop.spec.same_upper": (a) => upper(a, total(a)),
    "onednn.backprop.runtime.valid": (a) => (requireConvolution(a, 0), [0, a.wanted]),
    "onednn.backprop.runtime.same_lower": (a) => [div(backpropSame(a) + 1, 2), a.wanted],
    "onednn.backprop.runtime.same_upper": (a) => [div(backpropSame(a), 2), a.wanted],
  };
  function backpropRule(rules, pad) {
    if (pad === "explicit") return "onednn.backprop.none";
    if (rules === "runtime") return `onednn.backprop.runtime.${pad}`;
    return pad === "same_upper" ? "onednn.backprop.spec.same_upper" : "onednn.backprop.spec.halves";
  }

  function gradientSize(a, pads) {
    const room = a.size + pads - a.ke - a.op;
    const rest = mod(room, a.stride);
    if (a.op && rest) {
      const fix = `use output_padding ${mod(a.op + rest, a.stride)}`;
      throw new Refusal("output_delta", `no ConvTranspose with output_padding ${a.op} gives ${a.size} on axis ${a.index}`, fix);
    }
    return div(room, a.stride) + 1;
  }
  function gradientSame(a) {
    const own = a.size - a.op; // ConvTranspose added output_padding last, so it is set aside first
    const t = Math.max(0, (ceilDiv(own, a.stride) - 1) * a.stride + a.ke - own);
    return [t, a.op ? gradientSize(a, t) : ceilDiv(a.size, a.stride)];
  }
  const gradient = {
    none: (a) => [a.pb, gradientSize(a, a.pb + a.pe)],
    valid: (a) => [0, gradientSize(a, 0)],
    same_upper: (a) => (([t, x]) => [div(t, 2), x])(gradientSame(a)),
    same_lower: (a) => (([t, x]) => [t - div(t, 2), x])(gradientSame(a)),
  };
  const gradientRules = Object.fromEntries(
    Object.entries(gradient).flatMap(([pad, solve]) => [
      [`onednn.gradient.spec.${pad}`, solve],
      [`onednn.gradient.runtime.${pad}`, (a) => solve({ ...a, op: 0 })], // the engine never reads output_padding
    ]),
  );

  const forwardSame = (a) => Math.max(0, a.ke - a.stride);
  const forward = {
    "onednn.forward.none": explicit,
    "onednn.forward.valid": noPads,
    "onednn.forward.same_upper": (a) => [div(forwardSame(a), 2), a.full - forwardSame(a) + a.op],
    "onednn.forward.same_lower": (a) => [div(forwardSame(a) + 1, 2), a.full - forwardSame(a) + a.op],
  };

  function onnxTotal(a) {
    const natural = a.full + a.op;
    const t = Math.max(0, natural - (a.wanted === null ? a.size * a.stride : a.wanted));
    return [t, a.wanted === null ? natural - t : a.wanted];
  }
  const onnxUpper = (a) => (([t, y]) => [div(t, 2), y])(onnxTotal(a));
  const onnxOther = (a) => (([t, y]) => [t - div(t, 2), y])(onnxTotal(a));
  const onnx = {
    "onnx.notset": explicit,
    "onnx.valid": noPads,
    "onnx.same_upper": onnxUpper,
    "onnx.same_lower": onnxOther,
    "onnx.sized.same_upper": onnxUpper,
    "onnx.sized": onnxOther,
  };
  function onnxRule(_, pad, sized) {
    if (!sized) return pad === "explicit" ? "onnx.notset" : `onnx.${pad}`;
    return pad === "same_upper" ? "onnx.sized.same_upper" : "onnx.sized";
  }

  const torch = { "torch.conv_transpose": (a) => [a.pb, a.full - 2 * a.pb + a.op] };
  const direct = { window: (a) => [a.begin, a.wanted] };

  const padName = (pad) => (pad === "explicit" ? "none" : pad);
  const AUTO = ["explicit", "valid", "same_upper", "same_lower"];
  /* sized: may the call carry output_shape ("no", "may", "must"); limited: output_padding < max(stride, dilation). */
  const DIALECTS = {
    openvino: { direction: "scatter", rules: openvino, rule: openvinoRule, two: true, auto: AUTO, sized: "may" },
    "onednn.ConvolutionBackpropData": {
      direction: "scatter", rules: backprop, rule: backpropRule, two: true, auto: AUTO, sized: "must",
    },
    "onednn.ConvTranspose": {
      direction: "scatter", rules: forward, rule: (_, pad) => `onednn.forward.${padName(pad)}`, two: true, auto: AUTO, sized: "no",
    },
    "onednn.ConvTransposeBackpropData": {
      direction: "gather", rules: gradientRules, rule: (rules, pad) => `onednn.gradient.${rules}.${padName(pad)}`,
      two: true, auto: AUTO, sized: "no",
    },
    onnx: { direction: "scatter", rules: onnx, rule: onnxRule, two: false, auto: AUTO, sized: "may", limited: true },
    torch: {
      direction: "scatter", rules: torch, rule: () => "torch.conv_transpose", two: false, auto: ["explicit"], sized: "no", limited: true,
    },
    window: { direction: "scatter", rules: direct, rule: () => "window", two: false, auto: ["explicit"], sized: "must" },
    "window.gather": {
      direction: "gather", rules: direct, rule: () => "window", two: false, auto: ["explicit"], sized: "must",
    },
  };

  // -------------------------------------------------------------------------------------------------------- resolve
  /* A call is { dialect, rules, size, kernel, strides, dilations, pads_begin, pads_end, output_padding, auto_pad,
     output_shape (a list or null), begin (dialect "window" only), groups, ci, co }; size belongs to the data. */

  const LEAST = { size: 1, kernel: 1, strides: 1, dilations: 1, pads_begin: 0, pads_end: 0, output_padding: 0 };

  function checkCall(call, dialect) {
    const lists = { ...LEAST, ...(call.output_shape === null ? {} : { output_shape: 0 }) };
    for (const [field, least] of Object.entries(lists)) {
      for (const value of call[field]) {
        if (Number.isInteger(value) && value >= least && value <= MAX_EXTENT) continue;
        throw new Refusal(field, `must be an integer from ${least} to ${MAX_EXTENT}, not ${value}`);
      }
    }
    if (dialect.sized === "must" && call.output_shape === null) throw new Refusal("output_shape", "is required", "give it");
    if (dialect.sized === "no" && call.output_shape !== null) {
      throw new Refusal("output_shape", "this operator has no output_shape", "leave it out");
    }
    if (!dialect.limited) return;
    call.output_padding.forEach((value, n) => {
      const limit = Math.max(call.strides[n], call.dilations[n]);
      if (value >= limit) throw new Refusal("output_padding", `must be below max(stride, dilation) = ${limit} on axis ${n}`);
    });
  }

  function readAxes(call) {
    return call.size.map((size, index) => {
      const [kernel, stride, dilation] = [call.kernel[index], call.strides[index], call.dilations[index]];
      const ke = (kernel - 1) * dilation + 1;
      return {
        index, size, kernel, stride, dilation, ke, full: stride * (size - 1) + ke,
        wanted: call.output_shape === null ? null : call.output_shape[index],
        begin: call.begin ? call.begin[index] : 0,
        pb: call.pads_begin[index], pe: call.pads_end[index], op: call.output_padding[index],
      };
    });
  }

  function solve(dialect, name, axes) {
    const least = dialect.direction === "scatter" ? 0 : 1;
    return axes.map((a) => {
      const [begin, size] = dialect.rules[name](a);
      if (size < least) {
        throw new Refusal("output_shape", `the result's size on axis ${a.index} would be ${size}`, "use smaller pads or larger data");
      }
      if (size > MAX_EXTENT || Math.abs(begin) > MAX_EXTENT) throw new Refusal("output_shape", "the result is too large");
      const [x, y] = dialect.direction === "scatter" ? [a.size, size] : [size, a.size];
      return { x, y, kernel: a.kernel, stride: a.stride, dilation: a.dilation, begin };
    });
  }

  /** What a call means: { direction, axes, rule, other: { rules, rule, axes, refusal, differs } or null }. Throws Refusal. */
  function resolve(call) {
    const dialect = DIALECTS[call.dialect];
    checkCall(call, dialect);
    const read = readAxes(call);
    const name = (rules) => dialect.rule(rules, call.auto_pad, call.output_shape !== null);
    const axes = solve(dialect, name(call.rules), read);
    const result = { direction: dialect.direction, axes, rule: name(call.rules), other: null };
    if (!dialect.two) return result;
    const rules = call.rules === "spec" ? "runtime" : "spec";
    const other = { rules, rule: name(rules), axes: null, refusal: null };
    try {
      other.axes = solve(dialect, other.rule, read);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      other.refusal = error.message;
    }
    const same = (a, n) => a.begin === axes[n].begin && a.x === axes[n].x && a.y === axes[n].y;
    other.differs = other.axes === null || !other.axes.every(same);
    return { ...result, other };
  }

  return { DIALECTS, MAX_EXTENT, Refusal, diagnose, extent, full, list, overlap, phaseTaps, reads, resolve, source, taps, mod };
})();
