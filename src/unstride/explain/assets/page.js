"use strict";
/* The page: reads the controls into a call, resolves it, and shows window, picture, phases, other dialects and code. */
(() => {
  const $ = (id) => document.getElementById(id);
  const start = JSON.parse($("start").textContent);
  const { escape } = Picture;

  // field: [label, least, slider's most]
  const FIELDS = {
    size: ["input size", 1, 16], kernel: ["kernel", 1, 9], strides: ["strides", 1, 6], dilations: ["dilations", 1, 5],
    pads_begin: ["pads_begin", 0, 8], pads_end: ["pads_end", 0, 8], output_padding: ["output_padding", 0, 8],
    begin: ["begin", -8, 24], output_shape: ["output_shape", 0, 40],
  };
  const LISTS = Object.keys(FIELDS);
  const MOST = 65535;
  const plain = (rank) => ({
    dialect: "openvino", rules: "spec", size: Array(rank).fill(5), kernel: Array(rank).fill(3), strides: Array(rank).fill(2),
    dilations: Array(rank).fill(1), pads_begin: Array(rank).fill(1), pads_end: Array(rank).fill(1),
    output_padding: Array(rank).fill(0), auto_pad: "explicit", output_shape: null, begin: Array(rank).fill(0),
    groups: 1, ci: 1, co: 1,
  });
  const example = (rank, changes) => ({ ...plain(rank), ...changes });
  const EXAMPLES = {
    "Checkerboard: kernel 3, stride 2": example(2, {}),
    "Even: kernel 4, stride 2, pads 1": example(2, { kernel: [4, 4] }),
    "Matrix of one axis": example(1, { size: [6], kernel: [4], pads_end: [0] }),
    "output_shape against pads": example(2, { output_shape: [10, 10] }),
    "Odd padding, same_upper": example(1, { auto_pad: "same_upper", output_shape: [9], kernel: [4], size: [5] }),
    "Surplus zeros: negative begin": example(2, { output_shape: [15, 14], pads_begin: [0, 0], pads_end: [0, 0], size: [4, 4] }),
    "Holes: stride and dilation 2": example(2, { dilations: [2, 2], size: [4, 4] }),
    "output_padding past the last tap": example(1, { output_padding: [4], pads_end: [0] }),
    "Four groups": example(2, { kernel: [4, 4], groups: 4, ci: 5, co: 2 }),
    "ONNX SAME_LOWER": example(2, { dialect: "onnx", auto_pad: "same_lower", kernel: [4, 5] }),
    "oneDNN gradient of a convolution": example(2, { dialect: "onednn.ConvolutionBackpropData", output_shape: [10, 10] }),
    "Gradient of ConvTranspose": example(2, { dialect: "onednn.ConvTransposeBackpropData", size: [9, 9] }),
  };

  const state = {
    call: start.call, chosen: null, hovered: null, views: [], library: "unstride", linked: true, wanted: [10, 10], borrowed: false,
  };
  let resolution = null;

  // -------------------------------------------------------------------------------------------------- the address bar

  function toHash(call) {
    const words = { d: call.dialect, r: call.rules, p: call.auto_pad, g: call.groups, i: call.ci, o: call.co };
    LISTS.forEach((name) => call[name] && (words[name] = call[name].join("x")));
    return new URLSearchParams(words).toString();
  }

  function fromHash(text) {
    const words = new URLSearchParams(text);
    const integers = (value) => value.split("x").slice(0, 2).map((v) => Math.max(-MOST, Math.min(Unstride.MAX_EXTENT, parseInt(v, 10) || 0)));
    if (!words.has("size") || !Unstride.DIALECTS[words.get("d")]) return null;
    const rank = integers(words.get("size")).length;
    const call = plain(rank);
    LISTS.forEach((name) => {
      const values = words.has(name) ? integers(words.get(name)) : null;
      if (values?.length === rank) call[name] = values;
    });
    const dialect = words.get("d");
    const pad = words.get("p");
    const number = (key) => Math.max(1, Math.min(MOST, parseInt(words.get(key), 10) || 1));
    return {
      ...call, dialect, rules: words.get("r") === "runtime" ? "runtime" : "spec", groups: number("g"), ci: number("i"), co: number("o"),
      auto_pad: Unstride.DIALECTS[dialect].auto.includes(pad) ? pad : "explicit",
    };
  }

  // ----------------------------------------------------------------------------------------------------- the controls

  const rank = () => state.call.size.length;
  const axisNames = () => (rank() === 1 ? [""] : ["H", "W"]);
  const dialect = () => Unstride.DIALECTS[state.call.dialect];
  const isWindow = () => state.call.dialect.startsWith("window");
  const ignored = () => {
    const { call } = state;
    if (isWindow()) return ["pads_begin", "pads_end", "output_padding"];
    const names = ["begin"];
    if (call.dialect === "torch") names.push("pads_end");
    if (dialect().sized === "no") names.push("output_shape");
    return names;
  };

  function labelOf(name) {
    const gather = dialect().direction === "gather";
    if (name === "size") return gather ? "output_delta Y" : "input size X";
    if (name === "kernel") return "kernel K";
    if (name === "output_shape" && isWindow()) return gather ? "result X" : "Y";
    if (state.call.dialect === "torch" && name === "pads_begin") return "padding";
    return FIELDS[name][0];
  }

  function buildFields() {
    const shown = LISTS.filter((name) => !ignored().includes(name));
    const single = rank() === 1 || state.linked;
    $("fields").innerHTML = shown.map((name) => {
      const values = state.call[name];
      const optional = name === "output_shape" && dialect().sized === "may";
      const label = labelOf(name);
      const title = optional
        ? `<label class="name check"><input type="checkbox" id="use_output_shape" ${values ? "checked" : ""}> ${label}</label>`
        : `<span class="name">${label}</span>`;
      const sliders = (single ? [0] : [0, 1]).map((n) => slider(name, n, values ? values[n] : state.wanted[n], single, !values, label));
      return `<div class="row ${values ? "" : "off"}" data-row="${name}">${title}<div class="controls">${sliders.join("")}</div></div>`;
    }).join("");
  }

  function slider(name, n, value, single, off, label) {
    const [, least, most] = FIELDS[name];
    const axis = single ? "" : axisNames()[n];
    const words = `${label}${axis ? `, axis ${axis}` : ""}`;
    const common = `min="${least}" value="${value}" data-field="${name}" data-axis="${n}" ${off ? "disabled" : ""}`;
    return `<div class="one"><span class="axis">${axis}</span><input type="range" max="${Math.max(most, value)}" ${common} aria-label="${words}, slider">` +
      `<input type="number" max="${MOST}" ${common} aria-label="${words}" inputmode="numeric"></div>`;
  }

  function fillControls() {
    const { call } = state;
    $("dialect").value = call.dialect;
    $("auto_pad").innerHTML = dialect().auto.map((pad) => `<option value="${pad}">${padWord(pad)}</option>`).join("");
    $("auto_pad").value = call.auto_pad;
    $("auto_pad").disabled = dialect().auto.length === 1;
    document.querySelectorAll("[name=rules]").forEach((radio) => {
      radio.checked = radio.value === call.rules;
      radio.disabled = !dialect().two;
    });
    document.querySelectorAll("[name=rank]").forEach((radio) => (radio.checked = Number(radio.value) === rank()));
    $("linkRow").hidden = rank() === 1;
    $("linked").checked = state.linked;
    ["groups", "ci", "co"].forEach((name) => ($(name).value = call[name]));
    buildFields();
  }

  /** Whether an attribute changes nothing in this call, found by changing it. */
  function isInert(name) {
    const answer = (call) => {
      try {
        return JSON.stringify(Unstride.resolve(call).axes);
      } catch (error) {
        if (error instanceof Unstride.Refusal) return error.message;
        throw error;
      }
    };
    const now = answer(state.call);
    return [1, 2, 3].every((step) => answer({ ...state.call, [name]: state.call[name].map((v) => v + step) }) === now);
  }

  function markInert(resolved) {
    for (const name of ["pads_begin", "pads_end", "output_padding"]) {
      const row = $("fields").querySelector(`[data-row=${name}]`);
      if (!row) continue;
      const inert = resolved && isInert(name);
      row.classList.toggle("inert", inert);
      row.title = inert ? `${name} has no effect on this call` : "";
    }
  }

  function padWord(pad) {
    if (state.call.dialect === "onnx") return pad === "explicit" ? "NOTSET" : pad.toUpperCase();
    return pad === "explicit" && state.call.dialect.startsWith("onednn") ? "none" : pad;
  }

  /** Attributes that the new operator does not have are dropped, those it needs are given. */
  function switchDialect(name) {
    const before = resolution;
    const { call } = state;
    const was = dialect().direction;
    call.dialect = name;
    const kind = dialect();
    if (!kind.auto.includes(call.auto_pad)) call.auto_pad = "explicit";
    if (before && kind.direction !== was) call.size = before.axes.map((a) => (kind.direction === "gather" ? Math.max(1, a.y) : a.x));
    if (kind.sized === "no" || (kind.sized === "may" && state.borrowed)) call.output_shape = null;
    state.borrowed = kind.sized === "must" && (state.borrowed || !call.output_shape); // given only because it must be
    if (kind.sized === "must" && (!call.output_shape || kind.direction !== was)) {
      call.output_shape = before ? before.axes.map((a) => (kind.direction === "gather" ? a.x : a.y)) : [...state.wanted].slice(0, rank());
    }
    if (isWindow() && before) call.begin = before.axes.map((a) => a.begin);
  }

  function setRank(next) {
    const resize = (values) => (next === 1 ? values.slice(-1) : [values[0], values[0]]);
    LISTS.forEach((name) => state.call[name] && (state.call[name] = resize(state.call[name])));
    state.wanted = [state.wanted[0], state.wanted[0]];
    state.linked = true;
    state.chosen = null;
  }

  // ------------------------------------------------------------------------------------------------------- the answer

  function resolveState() {
    try {
      resolution = Unstride.resolve(state.call);
      return null;
    } catch (error) {
      if (!(error instanceof Unstride.Refusal)) throw error;
      return error.message;
    }
  }

  // ------------------------------------------------------------------------------------------------------ the picture

  const resultSize = () => resolution.axes.map((a) => (resolution.direction === "scatter" ? a.y : a.x));

  /** Where to start: an element with the most products, near the middle of the first dozen. */
  function busiest(a, size) {
    const count = (at) => (resolution.direction === "scatter" ? Unstride.taps(a, at + a.begin) : Unstride.reads(a, at)).count;
    const middle = Math.min(Math.floor(size / 2), 6);
    const order = Array.from({ length: Math.min(size, 12) }, (_, n) => n).sort((p, q) => Math.abs(p - middle) - Math.abs(q - middle));
    return order.reduce((best, at) => (count(at) > count(best) ? at : best), order[0]);
  }

  function keepChosen() {
    const sizes = resultSize();
    if (sizes.some((size) => size === 0)) state.chosen = null;
    else if (!state.chosen || state.chosen.length !== sizes.length) state.chosen = resolution.axes.map((a, n) => busiest(a, sizes[n]));
    else state.chosen = state.chosen.map((at, n) => Math.max(0, Math.min(at, sizes[n] - 1)));
  }

  function showPicture() {
    const { markup, abridged } = Picture.draw(resolution, state.chosen, state.hovered, state.views, $("figure").parentElement.clientWidth);
    $("figure").innerHTML = markup;
    const what = resolution.direction === "scatter" ? "an output" : "a result";
    $("pictureHint").textContent = `Point at ${what}, or use the arrow keys.${abridged ? " Only a part fits the frame; it follows the choice." : ""}`;
    $("legend").innerHTML = Panels.legend(resolution.direction);
    showTerms();
  }

  function showTerms() {
    const { equation, items, count } = state.chosen
      ? Panels.products(resolution, state.chosen)
      : { equation: "The result is empty.", items: [], count: 0 };
    $("equation").textContent = equation;
    $("termsBox").hidden = count <= 4;
    const more = count > items.length ? `<li>${count - items.length} more</li>` : "";
    $("terms").innerHTML = items.map((item) => `<li>${escape(item)}</li>`).join("") + more;
  }

  function choose(next) {
    if (String(next) === String(state.chosen)) return;
    state.chosen = next;
    showPicture();
  }

  function moveBy(event) {
    if (!state.chosen || event.altKey || event.ctrlKey || event.metaKey) return;
    const last = rank() - 1;
    const leap = resolution.axes.map((a) => (event.shiftKey ? a.stride : 1));
    const steps = { ArrowLeft: [last, -leap[last]], ArrowRight: [last, leap[last]], ArrowUp: [0, -leap[0]], ArrowDown: [0, leap[0]] };
    const sizes = resultSize();
    const next = [...state.chosen];
    if (steps[event.key]) {
      const [axis, step] = steps[event.key];
      next[axis] = Math.max(0, Math.min(sizes[axis] - 1, next[axis] + step));
    } else if (event.key === "Home") next.fill(0);
    else if (event.key === "End") next.forEach((_, n) => (next[n] = sizes[n] - 1));
    else return;
    event.preventDefault();
    state.hovered = null;
    choose(next);
  }

  // --------------------------------------------------------------------------------------------------- the whole page

  function showPanels() {
    const { verdict, words } = Panels.diagnosis(resolution);
    $("diagnosis").className = verdict;
    $("diagnosis").textContent = words;
    $("phases").innerHTML = Panels.phases(resolution.axes);
    $("othersCard").hidden = isWindow(); // a bare window has no attributes to carry elsewhere
    $("sizeHead").textContent = resolution.direction === "scatter" ? "Y" : "X";
    $("others").innerHTML = Panels.others(state.call, resolution);
    showCode();
  }

  function showCode() {
    const texts = new Map(Code.texts(state.call, resolution));
    $("tabs").innerHTML = Panels.tabs([...texts.keys()], state.library);
    $("code").dataset.text = texts.get(state.library);
    $("code").firstElementChild.innerHTML = Panels.coloured(texts.get(state.library));
  }

  function update() {
    const refusal = resolveState();
    markInert(refusal === null);
    $("channelMap").innerHTML = Panels.channels(state.call, dialect().direction);
    document.body.classList.toggle("stale", refusal !== null); // what is shown below belongs to an earlier call
    history.replaceState(null, "", `#${toHash(state.call)}`);
    if (refusal) {
      $("answer").innerHTML = `<div class="note bad" role="alert">${escape(refusal)}</div>`;
      return;
    }
    $("answer").innerHTML = Panels.answer(resolution, start.rules);
    keepChosen();
    state.hovered = null;
    showPicture();
    showPanels();
  }

  function load(call) {
    state.call = structuredClone(call);
    state.call.begin ??= state.call.size.map(() => 0);
    state.views = [];
    state.chosen = null;
    state.linked = LISTS.every((name) => !state.call[name] || new Set(state.call[name]).size === 1);
    fillControls();
    update();
  }

  // ----------------------------------------------------------------------------------------------------------- events

  function readNumber(input) {
    const value = parseInt(input.value, 10);
    if (!Number.isInteger(value)) return;
    const { field, axis } = input.dataset;
    const list = state.call[field];
    if (!list) return;
    if (field === "output_shape") state.borrowed = false;
    if (state.linked) list.fill(value);
    else list[Number(axis)] = value;
    input.closest(".one").querySelectorAll("input").forEach((twin) => {
      if (twin === input) return;
      if (twin.type === "range" && value > Number(twin.max)) twin.max = value;
      twin.value = value;
    });
    update();
  }

  function useOutputShape(on) {
    if (!on) state.wanted = state.call.output_shape ?? state.wanted;
    state.call.output_shape = on ? (resolution ? resolution.axes.map((a) => a.y) : state.wanted).slice(0, rank()) : null;
    fillControls();
    $("use_output_shape")?.focus();
    update();
  }

  async function copy() {
    const { text } = $("code").dataset;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      $("copy").focus();
    }
    $("copy").textContent = "Copied";
    $("copy").dataset.copied = state.library;
    setTimeout(() => ($("copy").textContent = "Copy"), 1200);
  }

  const THEMES = ["Auto", "Light", "Dark"];
  function nextTheme() {
    const next = THEMES[(THEMES.indexOf($("theme").textContent) + 1) % THEMES.length];
    $("theme").textContent = next;
    $("theme").setAttribute("aria-label", next === "Auto" ? "Colours: as the system" : `Colours: ${next.toLowerCase()}`);
    if (next === "Auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next.toLowerCase();
  }

  const indexOf = (text) => text.split(",").map(Number);
  $("figure").addEventListener("pointermove", (event) => {
    const { out, in: into } = event.target.dataset ?? {};
    if (out !== undefined) choose(indexOf(out));
    const hovered = into === undefined ? null : indexOf(into);
    if (String(hovered) === String(state.hovered)) return;
    state.hovered = hovered;
    showPicture();
  });
  $("figure").addEventListener("keydown", moveBy);
  $("fields").addEventListener("input", (event) => event.target.dataset.field && readNumber(event.target));
  $("fields").addEventListener("change", (event) => event.target.id === "use_output_shape" && useOutputShape(event.target.checked));
  $("dialect").addEventListener("change", () => (switchDialect($("dialect").value), fillControls(), update()));
  $("auto_pad").addEventListener("change", () => ((state.call.auto_pad = $("auto_pad").value), update()));
  $("rules").addEventListener("change", (event) => ((state.call.rules = event.target.value), update()));
  $("rank").addEventListener("change", (event) => (setRank(Number(event.target.value)), fillControls(), update()));
  $("linked").addEventListener("change", () => {
    state.linked = $("linked").checked;
    if (state.linked) LISTS.forEach((name) => state.call[name]?.fill(state.call[name][0]));
    fillControls();
    update();
  });
  ["groups", "ci", "co"].forEach((name) => $(name).addEventListener("input", () => {
    const value = parseInt($(name).value, 10);
    if (value >= 1 && value <= MOST) ((state.call[name] = value), update());
  }));
  $("answer").addEventListener("click", (event) => {
    if (event.target.id !== "flip") return;
    state.call.rules = state.call.rules === "spec" ? "runtime" : "spec";
    fillControls();
    update();
  });
  $("others").addEventListener("click", (event) => {
    const { dialect: name, rules } = event.target.dataset;
    if (!name) return;
    switchDialect(name);
    state.call.rules = rules;
    fillControls();
    update();
  });
  $("tabs").addEventListener("click", (event) => event.target.dataset.library && ((state.library = event.target.dataset.library), showCode()));
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tabs = [...$("tabs").children];
    const next = tabs[(tabs.findIndex((tab) => tab.dataset.library === state.library) + step + tabs.length) % tabs.length];
    state.library = next.dataset.library;
    showCode();
    $("tabs").querySelector("[aria-selected=true]").focus();
  });
  $("examples").addEventListener("change", () => $("examples").value && load(EXAMPLES[$("examples").value]));
  $("copy").addEventListener("click", copy);
  $("theme").addEventListener("click", nextTheme);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("resize", () => resolution && showPicture());
  window.addEventListener("hashchange", () => {
    const call = fromHash(location.hash.slice(1));
    if (call) load(call);
  });

  $("examples").innerHTML = `<option value="">choose…</option>` + Object.keys(EXAMPLES).map((name) => `<option>${escape(name)}</option>`).join("");
  $("dialect").innerHTML = Object.entries(Panels.NAMES).map(([name, words]) => `<option value="${name}">${escape(words)}</option>`).join("");
  load(fromHash(location.hash.slice(1)) ?? start.call);
})();
