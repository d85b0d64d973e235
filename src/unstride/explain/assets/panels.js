"use strict";
/* The panels around the picture, each a function from a call and its resolution to markup. */
const Panels = (() => {
  const { escape } = Picture;
  const TIMES = " × ";
  const NAMES = {
    openvino: "OpenVINO ConvolutionBackpropData",
    "onednn.ConvolutionBackpropData": "oneDNN ConvolutionBackpropData",
    "onednn.ConvTranspose": "oneDNN ConvTranspose",
    "onednn.ConvTransposeBackpropData": "oneDNN ConvTransposeBackpropData (gradient)",
    onnx: "ONNX ConvTranspose",
    torch: "torch conv_transpose",
    window: "the window itself",
    "window.gather": "the window itself, gradient",
  };
  const SHORT = { ...NAMES, openvino: "OpenVINO", "onednn.ConvTransposeBackpropData": "oneDNN ConvTransposeBackpropData" };
  const compact = (axes, name) => axes.map((a) => a[name]).join("×");
  const sizesOf = (axes, name) => axes.map((a) => a[name]).join(TIMES);
  const tapWord = (n) => `${n} ${n === 1 ? "tap" : "taps"}`;

  // ------------------------------------------------------------------------------------------------------- the answer

  function ruleMarkup(rule, direction) {
    const meaning = direction === "gather" ? "x[i] = Σ y[i*s + k*d - begin]·w[k]" : "y[o] = F[o + begin], F[i*s + k*d] = Σ x[i]·w[k]";
    if (!rule) return `<code>${meaning}</code><small>begin and size as given</small>`;
    return `<code>${escape(rule.formula)}</code><small>${escape(rule.document)}: ${escape(rule.when)}</small>`;
  }

  /** Size, begin, the rule that gave them, and what the other rule set says. */
  function answer({ axes, direction, rule, other }, rules) {
    const size = direction === "scatter" ? "y" : "x";
    const word = direction === "scatter" ? "output size Y" : "result size X";
    return `<div class="number"><b>${sizesOf(axes, size)}</b><span>${word}</span></div>` +
      `<div class="number"><b>${sizesOf(axes, "begin")}</b><span>begin</span></div>` +
      `<div class="rule">${ruleMarkup(rules[rule], direction)}</div>${disagreement(other, size, rules)}`;
  }

  function disagreement(other, size, rules) {
    if (!other) return "";
    if (!other.differs) return `<div class="note good"><span>spec and runtime agree here.</span></div>`;
    const words = other.refusal
      ? `The ${other.rules} rules refuse this call: ${other.refusal}`
      : `The ${other.rules} rules give begin ${sizesOf(other.axes, "begin")}, size ${sizesOf(other.axes, size)}, by ${rules[other.rule].formula}.`;
    return `<div class="note warn"><span>${escape(words)}</span><button type="button" id="flip">Follow ${other.rules}</button></div>`;
  }

  // ------------------------------------------------------------------------------------------------------- one element

  const index = (values) => `[${values.join(", ")}]`;

  /** { equation, items, count } of the chosen element: the sum in one line, its products, and how many there are. */
  function products(resolution, chosen) {
    const gather = resolution.direction === "gather";
    const per = Picture.terms(resolution, chosen, 8);
    const all = per.reduce((heads, list) => heads.flatMap((head) => list.map((item) => [...head, item])), [[]]);
    const items = all.map((parts) => {
      const place = parts.map(([f, i], n) => (gather ? f - resolution.axes[n].begin : i));
      return `${gather ? "y" : "x"}${index(place)}·w${index(parts.map((part) => part[2]))}`;
    });
    const count = resolution.axes.reduce((product, a, n) =>
      product * (gather ? Unstride.reads(a, chosen[n]) : Unstride.taps(a, chosen[n] + a.begin)).count, 1);
    const more = count > 4 ? ` + ${count - 4} more` : "";
    const equation = `${gather ? "x" : "y"}${index(chosen)} = ${items.slice(0, 4).join(" + ") || "0: no tap reaches it"}${more}`;
    return { equation, items, count };
  }

  // ------------------------------------------------------------------------------------------------ phases and overlap

  function diagnosis({ axes, direction }) {
    const d = Unstride.diagnose(axes);
    const [kernel, stride] = [sizesOf(axes, "kernel"), sizesOf(axes, "stride")];
    const reason = d.shared ? "stride and dilation share a factor, so taps skip positions" : "the kernel is smaller than the stride";
    const reading = {
      even: `Even use: every inner element of the data is in ${d.most} products.`,
      uneven: `Uneven use, ${d.least} to ${d.most} products for an element of the data: kernel ${kernel} is not a multiple of stride ${stride}.`,
      holes: `Holes: ${reason}; some inner elements of the data are never read.`,
    };
    const words = direction === "gather" ? reading : {
      even: `Even overlap: every inner output sums ${tapWord(d.most)}.`,
      uneven: `Uneven overlap, ${d.least} to ${tapWord(d.most)}: kernel ${kernel} is not a multiple of stride ${stride}, hence checkerboards. ` +
        `A kernel of ${d.wish.join(TIMES)} is even.`,
      holes: `Holes: ${reason}; some inner outputs are exactly zero, others sum ${tapWord(d.most)}.`,
    };
    return { verdict: d.verdict, words: words[d.verdict] };
  }

  /** The kernel once per phase, the taps that serve it coloured; at most 12 phases of one axis or 4 by 4 of two. */
  function phases(axes) {
    const line = axes.length === 1;
    const [rows, columns] = line ? [{ kernel: 1, stride: 1, dilation: 1 }, axes[0]] : axes;
    const shown = [Math.min(rows.stride, line ? 1 : 4), Math.min(columns.stride, line ? 12 : 4)];
    const figures = Array.from({ length: shown[0] * shown[1] }, (_, n) => {
      const [h, w] = [Math.floor(n / shown[1]), n % shown[1]];
      return phaseFigure(rows, columns, h, w, line ? `phase ${w}` : `phase ${h}, ${w}`);
    });
    const hidden = rows.stride * columns.stride - figures.length;
    const more = hidden ? `<p class="soft">and ${hidden} more phases</p>` : "";
    return `<div class="phaseGrid" style="--columns:${Math.min(shown[1], 4)}">${figures.join("")}</div>${more}`;
  }

  function phaseFigure(rows, columns, h, w, name) {
    const used = [Unstride.list(Unstride.phaseTaps(rows, h)), Unstride.list(Unstride.phaseTaps(columns, w))];
    const shape = [Math.min(rows.kernel, 9), Math.min(columns.kernel, 9)];
    const dot = 15;
    const colour = Picture.phaseName(h * columns.stride + w);
    const cells = Array.from({ length: shape[0] * shape[1] }, (_, n) => {
      const [r, c] = [Math.floor(n / shape[1]), n % shape[1]];
      const on = used[0].includes(r) && used[1].includes(c);
      return `<rect x="${c * dot + 1}" y="${r * dot + 1}" width="${dot - 2}" height="${dot - 2}" rx="3" class="${on ? colour : "us-cell"}"/>`;
    });
    const count = Unstride.phaseTaps(rows, h).count * Unstride.phaseTaps(columns, w).count;
    return `<figure><figcaption>${name}: ${tapWord(count)}</figcaption><svg class="us-picture" width="${shape[1] * dot + 1}" ` +
      `height="${shape[0] * dot + 1}" aria-hidden="true">${cells.join("")}</svg></figure>`;
  }

  /** What the marks of the picture mean. */
  function legend(direction) {
    const gather = direction === "gather";
    const entries = [
      [gather ? "the chosen result, and what it sums" : "the chosen output, and what it sums", '<rect x="2" y="2" width="18" height="18" rx="4" class="us-cell"/><rect x="2" y="2" width="18" height="18" rx="4" class="us-pick"/>'],
      [gather ? "the data" : "the window: what is kept", '<rect x="2" y="3" width="18" height="16" rx="4" class="us-window"/>'],
      [gather ? "outside the data, read as zero" : "reached by taps, cropped", '<rect x="3" y="3" width="16" height="16" rx="4" class="us-crop"/><line x1="7" y1="15" x2="15" y2="7" class="us-hatch"/>'],
      [gather ? "data that no tap reads" : "no tap reaches it: zero", '<rect x="3" y="3" width="16" height="16" rx="4" class="us-zero"/>'],
      [gather ? "what one result covers" : "what the input under the pointer covers", '<rect x="2" y="3" width="18" height="16" rx="4" class="us-pick us-stamp"/>'],
    ];
    const items = entries.map(([words, shapes]) => `<li><svg class="us-picture" width="22" height="22" aria-hidden="true">${shapes}</svg>${words}</li>`);
    const heat = [1, 2, 3, 4, 5, 6].map((n) => `<rect x="${(n - 1) * 15}" y="4" width="14" height="14" rx="3" class="us-h${n}"/>`).join("");
    items.push(`<li><svg class="us-picture" width="90" height="22" aria-hidden="true">${heat}</svg>few to many products</li>`);
    const phases = [0, 1, 2, 3].map((n) => `<rect x="${n * 15}" y="4" width="14" height="14" rx="3" class="us-p${n}"/>`).join("");
    items.push(`<li><svg class="us-picture" width="60" height="22" aria-hidden="true">${phases}</svg>phases of the taps</li>`);
    return items.join("");
  }

  // ------------------------------------------------------------------------------------- channels, dialects, libraries

  function channels({ groups, ci, co }, direction) {
    if (groups === 1) return "";
    const [reads, writes] = direction === "scatter" ? [ci, co] : [co, ci];
    const span = (g, n) => (n === 1 ? g : `${g * n}-${(g + 1) * n - 1}`);
    const blocks = Array.from({ length: Math.min(groups, 6) }, (_, g) =>
      `<svg class="us-picture" width="92" height="22"><rect width="92" height="22" rx="5" class="${Picture.phaseName(g)}"/>` +
      `<text x="46" y="15" class="us-mid us-mono us-on">${span(g, reads)} → ${span(g, writes)}</text></svg>`);
    return blocks.join("") + (groups > 6 ? `<span>${groups - 6} more</span>` : "");
  }

  /** One row per operator and rule set of the same direction: what it makes of the same attributes. */
  function others(call, resolution) {
    return Object.entries(Unstride.DIALECTS)
      .filter(([name, kind]) => kind.direction === resolution.direction && !name.startsWith("window"))
      .flatMap(([name, kind]) => {
        const cells = (kind.two ? ["spec", "runtime"] : [""]).map((rules) => [rules, otherCells(call, resolution, name, kind, rules || "spec")]);
        return cells.length === 2 && cells[0][1] === cells[1][1] ? [["both", name, cells[0][1]]] : cells.map(([rules, found]) => [rules, name, found]);
      })
      .map(([rules, name, cells]) => {
        const now = name === call.dialect && ["", "both", call.rules].includes(rules);
        const follow = rules === "runtime" || (rules === "both" && call.rules === "runtime") ? "runtime" : "spec";
        return `<tr class="${now ? "now" : ""}"><td><button type="button" data-dialect="${name}" data-rules="${follow}">` +
          `${escape(SHORT[name])}</button></td><td>${rules}</td>${cells}</tr>`;
      })
      .join("");
  }

  function otherCells(call, { axes, direction }, name, kind, rules) {
    const size = direction === "scatter" ? "y" : "x";
    const wanted = call.output_shape ?? (kind.sized === "must" ? axes.map((a) => a[size]) : null);
    const asked = {
      ...call, dialect: name, rules, output_shape: kind.sized === "no" ? null : wanted,
      auto_pad: kind.auto.includes(call.auto_pad) ? call.auto_pad : "explicit",
    };
    try {
      const found = Unstride.resolve(asked).axes;
      const cell = (key) => `<td class="${found.every((a, n) => a[key] === axes[n][key]) ? "same" : "other"}">${compact(found, key)}</td>`;
      return cell("begin") + cell(size);
    } catch (error) {
      if (!(error instanceof Unstride.Refusal)) throw error;
      return `<td class="refused" colspan="2" title="${escape(error.message)}">refuses ${escape(error.field)}</td>`;
    }
  }

  function tabs(names, chosen) {
    return names.map((name) => {
      const on = name === chosen;
      return `<button type="button" role="tab" aria-selected="${on}" tabindex="${on ? 0 : -1}" aria-controls="code" data-library="${name}">${name}</button>`;
    }).join("");
  }

  /** Code with its comments and strings coloured. */
  function coloured(text) {
    return escape(text).replace(/(^|\s)((?:#(?!include)|\/\/).*)|(&quot;.*?&quot;)/gm, (_, before, comment, string) =>
      (comment ? `${before}<span class="c">${comment}</span>` : `<span class="s">${string}</span>`));
  }

  return { NAMES, answer, channels, coloured, diagnosis, legend, others, phases, products, tabs };
})();
