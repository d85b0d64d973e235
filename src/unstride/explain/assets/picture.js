"use strict";
/* Draws a resolved call as SVG markup: the matrix of one axis, the planes of two. `chosen` is an element of the result,
   `hovered` an element of the data (or null). Class names and colours are those of unstride.explain.drawing. */
const Picture = (() => {
  const PHASES = 8, HEATS = 6;
  const LINE = { cell: 36, positions: 26, rows: 14, labels: 112 };
  const PLANE = { cell: 28, positions: 18, inputs: 10, taps: 11 };
  const NARROW = 640; // below this width the planes stand one above the other

  // ------------------------------------------------------------------------------------------------------------ pen

  const escape = (words) => String(words).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

  class Pen {
    parts = [];
    width = 0;
    height = 0;
    grow(x, y) {
      this.width = Math.max(this.width, x);
      this.height = Math.max(this.height, y);
    }
    rect(x, y, w, h, name, more = "") {
      this.grow(x + w, y + h);
      this.parts.push(`<rect x="${x}" y="${y}" width="${w}" height="${h}" rx="4" class="${name}" ${more}/>`);
    }
    text(x, y, words, name = "us-ink") {
      this.grow(0, y + 4);
      this.parts.push(`<text x="${x}" y="${y}" class="${name}">${escape(words)}</text>`);
    }
    line(x1, y1, x2, y2, name) {
      this.parts.push(`<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" class="${name}"/>`);
    }
    markup(label) {
      const [w, h] = [Math.ceil(this.width) + 8, Math.ceil(this.height) + 8];
      return `<svg class="us-picture" role="img" aria-label="${escape(label)}" width="${w}" height="${h}" viewBox="-4 -4 ${w} ${h}">${this.parts.join("")}</svg>`;
    }
  }

  /** Text whose width counts: 6.4 is a generous letter at 12 px. */
  function note(pen, x, y, words) {
    pen.text(x, y, words, "us-small us-soft");
    pen.grow(x + 6.4 * words.length, y);
  }

  const phaseName = (number) => `us-p${number % PHASES}`;
  const heat = (count, most) => (count ? Math.ceil((count * HEATS) / most) : 0);
  const fit = (label, letters) => (label.length <= letters ? label : `…${label.slice(1 - letters)}`);
  const range = (low, high) => Array.from({ length: Math.max(0, high - low) }, (_, n) => low + n);
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const positions = (a) => (a.y ? [Math.min(0, a.begin), Math.max(Unstride.full(a), a.begin + a.y)] : [0, Unstride.full(a)]);

  /** At most `limit` indices of [low, high) around the stretch [first, last]. */
  function part(low, high, limit, first, last) {
    if (high - low <= limit) return range(low, high);
    const start = clamp(Math.round((first + last - limit) / 2), low, high - limit);
    return range(start, start + limit);
  }

  /** The drawn positions; a picture that is larger than its frame moves only when the choice nears its border. */
  function follow(a, limit, focus, before) {
    const [low, high] = positions(a);
    if (high - low <= limit) return range(low, high);
    let start = before ?? low;
    if (focus < start + 2) start = focus - 2;
    if (focus > start + limit - 3) start = focus - limit + 3;
    start = clamp(start, low, high - limit);
    return range(start, start + limit);
  }

  const inside = (a, f) => f >= a.begin && f < a.begin + a.y;
  const reached = (a, f) => f >= 0 && f < Unstride.full(a);
  const count = (a, f) => Unstride.taps(a, f).count;

  /** Per axis, the [position, input, tap] triples of the chosen element. */
  function terms(resolution, chosen, limit = 64) {
    return resolution.axes.map((a, n) => {
      if (resolution.direction === "gather") {
        const i = chosen[n];
        return Unstride.list(Unstride.reads(a, i), limit).map((k) => [i * a.stride + k * a.dilation, i, k]);
      }
      const f = chosen[n] + a.begin;
      return Unstride.list(Unstride.taps(a, f), limit).map((k) => [f, Unstride.source(a, f, k), k]);
    });
  }

  function cropMark(pen, x, y, size) {
    pen.rect(x, y, size, size, "us-crop");
    pen.line(x + 5, y + size - 5, x + size - 5, y + 5, "us-hatch");
  }

  // ------------------------------------------------------------------------------------------------------- one axis

  function drawLine(resolution, chosen, hovered, views, width) {
    const pen = new Pen();
    const a = resolution.axes[0];
    const gather = resolution.direction === "gather";
    const small = width < 480;
    const [cell, labels] = small ? [29, 84] : [LINE.cell, LINE.labels];
    const box = small ? 30 : 44; // where the boxes of the inputs begin
    const used = chosen ? terms(resolution, chosen)[0] : [];
    const focus = chosen ? (gather ? chosen[0] * a.stride : chosen[0] + a.begin) : 0;
    const room = clamp(Math.floor((width - labels - 16) / cell), 5, LINE.positions);
    const columns = follow(a, room, focus, views[0]);
    views[0] = columns[0];
    const at = new Map(columns.map((f, n) => [f, labels + n * cell]));
    const firstRow = Math.max(0, Math.ceil((columns[0] - Unstride.extent(a) + 1) / a.stride));
    const lastRow = Math.min(a.x - 1, Math.floor(columns.at(-1) / a.stride));
    const inputs = used.map(([, i]) => i);
    const middle = inputs.length ? [Math.min(...inputs), Math.max(...inputs)] : [firstRow, firstRow];
    const rows = part(firstRow, lastRow + 1, LINE.rows, ...middle);
    const tap = (k, x, y, height, ring) => {
      pen.rect(x + 2, y + 2, cell - 4, height - 4, phaseName((k * a.dilation) % a.stride));
      pen.text(x + cell / 2, y + height / 2 + 4, fit(`w${k}`, 4), "us-mid us-mono us-on");
      if (ring) pen.rect(x + 2, y + 2, cell - 4, height - 4, "us-pick");
    };

    pen.text(0, 24, "kernel w", "us-head us-ink");
    const reach = Math.min(Unstride.extent(a), room);
    pen.line(labels + 4, 18, labels + reach * cell - 4, 18, "us-rule");
    const usedTaps = new Set(used.map(([, , k]) => k));
    range(0, reach).forEach((p) => p % a.dilation === 0 && tap(p / a.dilation, labels + p * cell, 0, 36, usedTaps.has(p / a.dilation)));

    const top = 74;
    const height = 32;
    pen.text(0, top - 10, gather ? "result x" : "input x", "us-head us-ink");
    columns.forEach((f) => pen.text(at.get(f) + cell / 2, top - 10, fit(String(f), 5), "us-mid us-mono us-tiny us-soft"));
    const bottom = top + rows.length * height + 8;
    if (chosen && gather && rows.includes(chosen[0])) {
      pen.rect(labels - 4, top + (chosen[0] - rows[0]) * height, columns.length * cell + 8, height, "us-band");
    } else if (chosen && at.has(focus)) pen.rect(at.get(focus), top - 4, cell, bottom - top + 36, "us-band");
    rows.forEach((i, n) => {
      const y = top + n * height;
      const role = gather ? `data-out="${i}"` : `data-in="${i}"`;
      const on = gather ? chosen?.[0] === i : inputs.includes(i);
      pen.rect(box, y + 2, 46, height - 4, "us-cell", role);
      pen.text(box + 23, y + height / 2 + 4, fit(`x${i}`, 6), "us-mid us-mono us-ink");
      if (on || (!gather && hovered?.[0] === i)) pen.rect(box, y + 2, 46, height - 4, on ? "us-pick" : "us-pick us-stamp");
      const [first, last] = [i * a.stride, i * a.stride + Unstride.extent(a) - 1];
      const seen = columns.filter((f) => f >= first && f <= last);
      if (seen.length) pen.line(at.get(seen[0]) + 8, y + height / 2, at.get(seen.at(-1)) + cell - 8, y + height / 2, "us-rule");
      seen.filter((f) => (f - first) % a.dilation === 0).forEach((f) => {
        const k = (f - first) / a.dilation;
        tap(k, at.get(f), y, height, used.some(([p, j, t]) => p === f && j === i && t === k));
      });
      if (!gather && hovered?.[0] === i && seen.length) {
        pen.rect(at.get(seen[0]), y, (seen.at(-1) - seen[0] + 1) * cell, height, "us-pick us-stamp");
      }
    });

    pen.text(0, bottom + 20, small ? "taps" : "taps meeting", "us-head us-ink");
    const most = Math.max(1, ...columns.map((f) => count(a, f)));
    columns.filter((f) => reached(a, f)).forEach((f) => heatCell(pen, at.get(f), bottom, cell, 30, count(a, f), most, ""));

    const base = bottom + 40;
    pen.text(0, base + 23, gather ? "data y" : "output y", "us-head us-ink");
    const read = new Set(used.map(([f]) => f));
    columns.forEach((f) => {
      const x = at.get(f);
      if (inside(a, f)) {
        const o = f - a.begin;
        const role = gather ? `data-in="${o}"` : `data-out="${o}"`;
        pen.rect(x + 2, base + 2, cell - 4, cell - 4, count(a, f) ? "us-cell" : "us-zero", role);
        pen.text(x + cell / 2, base + 22, fit(`y${o}`, 4), `us-mid us-mono ${count(a, f) ? "us-ink" : "us-soft"}`);
        if (gather ? read.has(f) : chosen?.[0] === o) pen.rect(x + 2, base + 2, cell - 4, cell - 4, "us-pick");
      } else if (reached(a, f)) cropMark(pen, x + 3, base + 3, cell - 6);
    });
    const shown = columns.filter((f) => inside(a, f));
    if (shown.length) {
      const [x0, x1] = [at.get(shown[0]), at.get(shown.at(-1)) + cell];
      pen.rect(x0 - 2, base - 3, x1 - x0 + 4, cell + 6, "us-window");
    }
    note(pen, labels, base + cell + 22, borders(resolution, [["start", "end"]]));
    return { pen, room };
  }

  function heatCell(pen, x, y, w, h, number, most, role) {
    const level = heat(number, most);
    pen.rect(x + 1, y + 1, w - 2, h - 2, level ? `us-h${level}` : "us-cell", role);
    pen.text(x + w / 2, y + h / 2 + 4, fit(String(number), 4), `us-mid us-mono ${level ? `us-t${level}` : "us-soft"}`);
  }

  /** What lies between the window's borders and the reach of the taps, in words. */
  function borders(resolution, names) {
    const [cut, fill] = resolution.direction === "gather" ? ["read as zero", "never read"] : ["cropped", "zero"];
    const words = resolution.axes.flatMap((a, n) => [a.begin, Unstride.full(a) - a.begin - a.y].map((d, side) =>
      d ? `${names[n][side]} ${Math.abs(d)} ${d > 0 ? cut : fill}` : ""));
    return words.filter(Boolean).join(", ") || "the window is the whole reach of the taps";
  }

  // ------------------------------------------------------------------------------------------------------- two axes

  function drawPlane(resolution, chosen, hovered, views, width) {
    const pen = new Pen();
    const { axes } = resolution;
    const gather = resolution.direction === "gather";
    const { cell } = PLANE;
    const used = chosen ? terms(resolution, chosen) : [[], []];
    const side = (n, index) => [...new Set(used[n].map((term) => term[index]))];
    const near = (n) => (side(n, 1).length ? [Math.min(...side(n, 1)), Math.max(...side(n, 1))] : [0, 0]);
    const left = 30;
    const stacked = width < NARROW;
    const fits = (pixels, most) => clamp(Math.floor(pixels / cell), 4, most);
    const inputs = axes.map((a, n) => part(0, a.x, stacked ? fits(width / 2 - 40, PLANE.inputs) : PLANE.inputs, ...near(n)));
    const taps = axes.map((a) => range(0, Math.min(Unstride.extent(a), stacked ? fits(width / 2 - 40, PLANE.taps) : PLANE.taps)));
    const inTop = 38;
    const tapLeft = stacked ? left + Math.max(inputs[1].length * cell, 120) + 34 : left;
    const tapTop = stacked ? inTop : inTop + inputs[0].length * cell + 54;
    const x0 = stacked ? left : left + Math.max(inputs[1].length * cell, taps[1].length * cell, 160) + 58;
    const top = stacked ? inTop + Math.max(inputs[0].length, taps[0].length) * cell + 60 : inTop;
    const room = fits(width - x0 - 16, PLANE.positions);
    const focus = axes.map((a, n) => (chosen ? (gather ? chosen[n] * a.stride : chosen[n] + a.begin) : 0));
    const field = axes.map((a, n) => follow(a, n ? room : PLANE.positions, focus[n], views[n]));
    field.forEach((list, n) => (views[n] = list[0]));
    const phase = (h, w) => phaseName(Unstride.mod(h, axes[0].stride) * axes[1].stride + Unstride.mod(w, axes[1].stride));
    const isOne = (pair, h, w) => pair && pair[0] === h && pair[1] === w;
    const grid = (lists, x0, y0, draw) => lists[0].forEach((h, r) => lists[1].forEach((w, c) => draw(h, w, x0 + c * cell, y0 + r * cell)));
    const numbers = (lists, x0, y0, label) => {
      lists[0].forEach((h, r) => pen.text(x0 - 8, y0 + r * cell + 18, label(h, 0), "us-end us-mono us-tiny us-soft"));
      lists[1].forEach((w, c) => pen.text(x0 + c * cell + cell / 2, y0 - 7, label(w, 1), "us-mid us-mono us-tiny us-soft"));
    };
    const heading = (x, y, name, detail) => {
      pen.text(x, y, name, "us-head us-ink");
      pen.text(x + 70, y, detail, "us-small us-soft");
    };
    const sizes = (name) => axes.map((a) => a[name]).join(" × ");

    // inputs, each source of the chosen output in the colour of its phase and with the tap it meets
    heading(left, 14, gather ? "result x" : "input x", sizes("x"));
    numbers(inputs, left, inTop, (i) => fit(String(i), 4));
    grid(inputs, left, inTop, (h, w, x, y) => {
      const th = used[0].find((t) => t[1] === h), tw = used[1].find((t) => t[1] === w);
      const on = !gather && th && tw;
      pen.rect(x + 2, y + 2, cell - 4, cell - 4, on ? phase(focus[0], focus[1]) : "us-cell", `${gather ? "data-out" : "data-in"}="${h},${w}"`);
      if (on && th[2] < 10 && tw[2] < 10) pen.text(x + cell / 2, y + 18, `${th[2]},${tw[2]}`, "us-mid us-mono us-tiny us-on");
      if (gather && isOne(chosen, h, w)) pen.rect(x + 2, y + 2, cell - 4, cell - 4, "us-pick");
      if (!gather && isOne(hovered, h, w)) pen.rect(x + 2, y + 2, cell - 4, cell - 4, "us-pick us-stamp");
    });

    // the kernel, its taps where dilation puts them
    heading(tapLeft, tapTop - 24, "kernel w", sizes("kernel"));
    numbers(taps, tapLeft, tapTop, (p, n) => (p % axes[n].dilation ? "" : String(p / axes[n].dilation)));
    grid(taps, tapLeft, tapTop, (h, w, x, y) => {
      if (h % axes[0].dilation || w % axes[1].dilation) {
        pen.rect(x + 12, y + 12, 4, 4, "us-cell");
        return;
      }
      pen.rect(x + 2, y + 2, cell - 4, cell - 4, phase(h, w));
      const [kh, kw] = [h / axes[0].dilation, w / axes[1].dilation];
      if (side(0, 2).includes(kh) && side(1, 2).includes(kw)) pen.rect(x + 2, y + 2, cell - 4, cell - 4, "us-pick");
    });

    // positions with the window on them
    heading(x0, top - 24, gather ? "data y" : "output y", sizes("y"));
    numbers(field, x0, top, (f, n) => (inside(axes[n], f) ? fit(String(f - axes[n].begin), 4) : ""));
    const most = Math.max(1, ...field[0].map((f) => count(axes[0], f))) * Math.max(1, ...field[1].map((f) => count(axes[1], f)));
    const readsHere = (h, w) => gather && used[0].some((t) => t[0] === h) && used[1].some((t) => t[0] === w);
    grid(field, x0, top, (h, w, x, y) => {
      if (inside(axes[0], h) && inside(axes[1], w)) {
        const [r, c] = [h - axes[0].begin, w - axes[1].begin];
        const number = count(axes[0], h) * count(axes[1], w);
        const role = `${gather ? "data-in" : "data-out"}="${r},${c}"`;
        if (number) heatCell(pen, x, y, cell, cell, number, most, role);
        else {
          pen.rect(x + 2, y + 2, cell - 4, cell - 4, "us-zero", role);
          pen.text(x + cell / 2, y + 18, "0", "us-mid us-mono us-soft");
        }
        if (readsHere(h, w) || (!gather && isOne(chosen, r, c))) pen.rect(x + 2, y + 2, cell - 4, cell - 4, "us-pick");
      } else if (reached(axes[0], h) && reached(axes[1], w)) cropMark(pen, x + 3, y + 3, cell - 6);
    });
    const spot = (n, test) => field[n].map((f, at) => (test(f) ? at : -1)).filter((at) => at >= 0);
    const frame = (rows, columns, name, out) => {
      if (!rows.length || !columns.length) return;
      const [w, h] = [(columns.at(-1) - columns[0] + 1) * cell, (rows.at(-1) - rows[0] + 1) * cell];
      pen.rect(x0 + columns[0] * cell - out, top + rows[0] * cell - out, w + 2 * out, h + 2 * out, name);
    };
    frame(spot(0, (f) => inside(axes[0], f)), spot(1, (f) => inside(axes[1], f)), "us-window", 2);
    const stamped = gather ? chosen : hovered;
    if (stamped) {
      const spans = axes.map((a, n) => spot(n, (f) => f >= stamped[n] * a.stride && f < stamped[n] * a.stride + Unstride.extent(a)));
      frame(spans[0], spans[1], "us-pick us-stamp", 0);
    }
    note(pen, x0, top + field[0].length * cell + 22, borders(resolution, [["top", "bottom"], ["left", "right"]]));
    return { pen, room };
  }

  /** { markup, abridged }: the picture for a frame of this width, and whether some positions are outside its frame. */
  function draw(resolution, chosen, hovered, views, width) {
    const drawer = resolution.axes.length === 1 ? drawLine : drawPlane;
    const { pen, room } = drawer(resolution, chosen, hovered, views, width);
    const wide = (a) => positions(a)[1] - positions(a)[0];
    const abridged = wide(resolution.axes.at(-1)) > room || wide(resolution.axes[0]) > (resolution.axes.length === 1 ? room : PLANE.positions);
    return { markup: pen.markup("Inputs, kernel and outputs of this call"), abridged };
  }

  return { draw, terms, phaseName, escape };
})();
