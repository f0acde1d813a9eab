// Draws the figures of the report page, of `drill play` and of the documentation as SVG.
// Line plots have zoom, log axes, values at the pointer and the difference to one line; bars show
// their value on hover. plots.css has the style.
"use strict";

const drill_plots = (() => {
  const LARGEST = 1e12; // larger values are not drawn
  const LOG_X = 8; // x is logarithmic where the longest line is this many times the shortest
  // The ends of lines matter most: values above CUT times the lowest are cut off, but at most one
  // point in seven, and never a whole line.
  const CUT = 1.7, SHOWN = 6 / 7;
  const LABELLED = 8; // with more lines, their last values have no space
  const LABEL_GAP = 15, LABEL_WIDTH = 56; // pixels
  const NEAR = 24; // pixels from the cursor to a point whose value is shown

  const maker = (space) => (tag, attributes = {}, ...children) => {
    const element = document.createElementNS(space, tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(key, value);
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  };
  const svg = maker("http://www.w3.org/2000/svg");
  const html = maker("http://www.w3.org/1999/xhtml");

  const lowest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const highest = (values) => -lowest(values.map((value) => -value));
  const value_text = (y) => (y < 1000 ? y.toFixed(2) : Math.round(y).toLocaleString("en"));
  const tick_text = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });

  function scale(low, high, start, end, log) {
    const [to, back] = log ? [Math.log, Math.exp] : [(v) => v, (v) => v];
    const [a, b] = [to(low), to(high)];
    const at = (value) => start + ((end - start) * (to(value) - a)) / (b - a);
    at.inverse = (pixel) => back(a + ((b - a) * (pixel - start)) / (end - start));
    return at;
  }

  function ticks(low, high, wanted, log, whole) {
    if (log) {
      const powers = [...Array(26).keys()].map((n) => 10 ** (n - 12));
      for (const digits of [[1], [1, 3], [1, 2, 5]]) {
        const values = powers.flatMap((power) => digits.map((digit) => digit * power)).filter((v) => low <= v && v <= high);
        if (values.length >= 4) return values.filter((_, n) => n % Math.ceil(values.length / wanted) === 0);
      }
    }
    const rough = 10 ** Math.floor(Math.log10((high - low) / wanted));
    const first = (step) => Math.ceil(low / step - 1e-9);
    const count = (step) => Math.floor(high / step + 1e-9) - first(step) + 1;
    let step = [1, 2, 5, 10, 20].map((factor) => factor * rough).find((size) => count(size) <= wanted);
    if (whole && high - low >= 2) step = Math.max(1, step);
    return [...Array(Math.max(0, count(step))).keys()].map((n) => (first(step) + n) * step);
  }

  function interpolated(points, x) {
    const right = points.findIndex((point) => point[0] >= x);
    if (right < 0) return NaN;
    if (points[right][0] === x) return points[right][1];
    if (right === 0) return NaN;
    const [[x0, y0], [x1, y1]] = [points[right - 1], points[right]];
    return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
  }

  // Parts of both kinds of plot.
  const text = (kind, x, y, content, more = {}) => svg("text", { class: kind, x, y, ...more }, content);
  const rule = (kind, x1, x2, y1, y2) => svg("line", { class: kind, x1, x2, y1, y2 });
  const turned = (degrees, x, y) => ({ transform: `rotate(${degrees} ${x} ${y})` });
  const axis_y = (values, down, { left, right, top, floor }, label) => [
    ...values.flatMap((value) => [rule("grid", left, right, down(value), down(value)), text("tick last", left - 8, down(value) + 4, tick_text(value))]),
    text("axis middle", 13, (top + floor) / 2, label, turned(-90, 13, (top + floor) / 2)),
  ];
  const box_of = (width) => ({ left: width < 600 ? 66 : 76, right: width - 12, top: 26, height: Math.round(Math.min(420, Math.max(280, 0.45 * width))) });

  // linear: linear axes first, and no value is cut off.
  // plot: {title, x, y, whole, linear, lines: [{name, look, points: [[x, y]], band: [[x, low, high]]}]}
  class LinePlot {
    constructor(figure, plot) {
      this.figure = figure;
      this.zoom = this.cursor = this.brush = null;
      this.hidden = new Set();
      const redraw = () => this.draw();
      this.log_x = html("input", { type: "checkbox", change: () => this.set_zoom(null) });
      this.log_y = html("input", { type: "checkbox", change: redraw });
      this.log_y.checked = !plot.linear;
      this.base = html("select", { change: redraw });
      const button = (text, work) => html("button", { type: "button", click: work }, text);
      const controls = html("div", { class: "plot-controls" },
        html("label", {}, this.log_x, "log x"), html("label", {}, this.log_y, "log y"),
        html("label", {}, "difference to ", this.base),
        button("Zoom in", () => this.zoom_by(0.5)), button("Zoom out", () => this.zoom_by(2)), button("Show all", () => this.set_zoom(null)));
      const pointer = (event) => event.clientX - this.svg.getBoundingClientRect().left;
      this.svg = svg("svg", {
        class: "plot live", role: "img", tabindex: 0,
        pointerdown: (event) => { // a finger reads values, the mouse draws what to zoom to
          if (event.pointerType === "touch") return this.point_at(pointer(event));
          this.svg.setPointerCapture(event.pointerId);
          this.brush = [pointer(event), pointer(event)];
        },
        pointermove: (event) => { if (this.brush) this.brush[1] = pointer(event); this.point_at(pointer(event)); },
        pointerup: () => this.end_brush(),
        pointercancel: () => { this.brush = null; },
        pointerleave: (event) => { if (event.pointerType !== "touch") this.cursor = null; this.draw(); },
        dblclick: () => this.set_zoom(null),
        keydown: (event) => this.key(event),
      });
      this.legend = html("ul", { class: "legend" });
      for (const old of figure.querySelectorAll(".plot, .legend")) old.remove();
      figure.prepend(controls, this.svg, this.legend);
      this.update(plot);
      const ends = this.lines.filter((line) => line.points.length).map((line) => line.points.at(-1)[0]);
      this.log_x.checked = !plot.linear && lowest(ends) > 0 && highest(ends) >= LOG_X * lowest(ends);
      new ResizeObserver(redraw).observe(figure);
    }

    update(plot) {
      this.plot = plot;
      this.lines = plot.lines;
      this.svg.setAttribute("aria-label", `${plot.title}. Arrow keys show values, plus and minus zoom, 0 shows all.`);
      const names = JSON.stringify(this.lines.map((line) => [line.name, line.look]));
      if (names !== this.names) this.fill_legend();
      this.names = names;
      this.draw();
    }

    fill_legend() {
      const chosen = this.base.value;
      this.base.replaceChildren(html("option", { value: "" }, "none"), ...this.lines.map(({ name }) => html("option", { value: name }, name)));
      this.base.value = this.lines.some(({ name }) => name === chosen) ? chosen : "";
      this.outputs = this.lines.map(() => html("output"));
      this.legend.replaceChildren(...this.lines.map(({ name, look }, n) => {
        const toggle = () => { this.hidden.delete(name) || this.hidden.add(name); this.draw(); };
        const box = html("input", { type: "checkbox", change: toggle });
        box.checked = !this.hidden.has(name);
        const sample = svg("svg", { class: "line", viewBox: "0 0 30 12", "aria-hidden": "true" }, svg("path", { d: "M1 6L29 6" }));
        return html("li", { class: look }, html("label", {}, box, sample, html("bdi", {}, name), this.outputs[n]));
      }));
    }

    // -- zoom and cursor ---------------------------------------------------------------------------

    set_zoom(range) {
      this.zoom = range;
      this.draw();
    }

    zoom_by(factor) { // around the cursor; without one the end stays
      if (!this.drawn.length) return;
      const { across, left, right } = this;
      const middle = this.cursor === null ? right : across(this.cursor);
      const ends = [left, right].map((end) => across.inverse(middle + factor * (end - middle)));
      const all = this.whole_range();
      const range = [Math.max(ends[0], all[0]), Math.min(ends[1], all[1])];
      this.set_zoom(range[0] <= all[0] && range[1] >= all[1] ? null : range);
    }

    end_brush() {
      const ends = (this.brush ?? [0, 0]).map((pixel) => Math.min(this.right, Math.max(this.left, pixel))).sort((a, b) => a - b);
      this.brush = null;
      if (ends[1] - ends[0] > 8) this.set_zoom(ends.map(this.across.inverse));
      else this.draw();
    }

    positions() { // every x in view
      const [low, high] = this.range;
      return [...new Set(this.drawn.flatMap((line) => line.points.map((point) => point[0])))].filter((x) => low <= x && x <= high).sort((a, b) => a - b);
    }

    point_at(pixel) {
      const far = (x) => Math.abs(this.across(x) - pixel);
      this.cursor = this.positions().reduce((best, x) => (best === null || far(x) < far(best) ? x : best), null);
      this.draw();
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (step) {
        const positions = this.positions();
        const now = this.cursor === null ? positions.length : positions.findIndex((x) => x >= this.cursor);
        this.cursor = positions[Math.min(positions.length - 1, Math.max(0, now + step))] ?? null;
        this.draw();
      } else if (factor) this.zoom_by(factor);
      else if (event.key === "0" || event.key === "Escape") this.set_zoom(null);
      else return;
      event.preventDefault();
    }

    // -- drawing -----------------------------------------------------------------------------------

    whole_range() {
      const xs = this.drawn.flatMap((line) => line.points.map((point) => point[0]));
      const start = this.log_x.checked ? lowest(xs) : Math.min(0, lowest(xs));
      const end = highest(xs);
      return end > start ? [start, end] : [start - 0.5, end + 0.5];
    }

    height_range(log) {
      const [low, high] = this.range;
      const seen = ([x]) => low <= x && x <= high;
      const of_lines = this.drawn.map((line) => line.points.filter(seen).map((point) => point[1])).filter((ys) => ys.length);
      const ys = of_lines.flat().sort((a, b) => a - b);
      if (!ys.length) return log ? [1, 10] : [0, 1];
      let [least, top] = [ys[0], ys.at(-1)];
      if (!this.base.value && !this.plot.linear) { // the steep start is cut off
        const lows = of_lines.map(lowest);
        top = Math.min(top, Math.max(CUT * least, 1.1 * highest(lows), ys[Math.ceil(SHOWN * ys.length) - 1]));
        least = lowest([least, ...this.drawn.map((line) => lowest(line.band.filter(seen).map((point) => point[1])))]);
      }
      if (log) {
        const padding = Math.max(0.01, 0.04 * Math.log(top / least));
        return [least * Math.exp(-2 * padding), top * Math.exp(padding)];
      }
      const padding = 0.05 * (top - least) || 0.5;
      return [least - padding, top + padding];
    }

    draw() {
      const width = this.figure.clientWidth;
      if (!width) return; // not shown yet
      const base = this.lines.find((line) => line.name === this.base.value);
      const log_y = this.log_y.checked && !base;
      this.log_y.disabled = Boolean(base);
      const drawable = ([x, y]) => Math.abs(x) < LARGEST && Math.abs(y) < LARGEST && (x > 0 || !this.log_x.checked) && (y > 1 / LARGEST || base || (this.plot.linear && !log_y));
      const known = base?.points.filter(([, y]) => Number.isFinite(y));
      this.drawn = this.lines.filter((line) => !this.hidden.has(line.name)).map((line) => {
        const all = base ? line.points.map(([x, y]) => [x, 100 * (y / interpolated(known, x) - 1)]) : line.points;
        return { ...line, all, points: all.filter(drawable), band: base ? [] : line.band ?? [] };
      }).filter((line) => line.points.length);
      const box = box_of(width);
      box.floor = box.height - 50;
      if (this.drawn.length <= LABELLED) box.right = width - 58;
      const { left, right, top, height, floor } = box;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.range = this.zoom ?? this.whole_range();
      if (!this.drawn.length) return this.svg.replaceChildren(text("axis", 10, 20, "nothing to show"));
      const across = scale(...this.range, left, right, this.log_x.checked);
      const heights = this.height_range(log_y);
      const down = scale(...heights, floor, top, log_y);
      Object.assign(this, { across, left, right });
      const dot = ([x, y], r) => svg("circle", { class: "dot", cx: across(x), cy: down(y), r });

      const inside = svg("svg", { x: left - 6, y: top, width: right - left + 12, height: floor - top + 6, viewBox: `${left - 6} ${top} ${right - left + 12} ${floor - top + 6}` });
      const at = ([x, y]) => `${across(x).toFixed(1)} ${down(y).toFixed(1)}`;
      for (const { look, band } of this.drawn) {
        const edge = band.filter(drawable);
        const around = [...edge.map(([x, low]) => at([x, low])), ...edge.map(([x, , high]) => at([x, high])).reverse()];
        if (edge.length) inside.append(svg("path", { class: `band ${look}`, d: `M${around.join("L")}` }));
      }
      const ends = [];
      for (const line of this.drawn) {
        const corners = line.all.map((point, n) => (!drawable(point) ? "" : n && drawable(line.all[n - 1]) ? `L${at(point)}` : `M${at(point)}L${at(point)}`));
        const last = line.points.at(-1);
        const parts = [svg("path", { d: corners.join("") }), dot(last, 3)];
        if (this.cursor !== null) {
          const far = ([x]) => Math.abs(across(x) - across(this.cursor));
          line.near = line.points.reduce((best, point) => (far(point) < far(best) ? point : best));
          if (far(line.near) > NEAR) line.near = null;
          else parts.push(dot(line.near, 4));
        }
        inside.append(svg("g", { class: `line ${line.look}` }, ...parts));
        if (last[0] <= this.range[1] && down(last[1]) >= top && down(last[1]) <= floor) ends.push([across(last[0]), down(last[1]) + 4, this.number(last[1])]);
      }

      const x_ticks = ticks(...this.range, Math.max(2, Math.floor(width / 70)), this.log_x.checked, this.plot.whole);
      const content = [
        ...axis_y(ticks(...heights, 7, log_y), down, box, base ? `% more than ${base.name}` : this.plot.y),
        rule("zero", left, right, floor, floor),
        ...x_ticks.flatMap((value) => [rule("zero", across(value), across(value), floor, floor + 4), text("tick middle", across(value), floor + 18, tick_text(value))]),
        text("axis middle", (left + right) / 2, height - 10, this.plot.x),
      ];
      if (this.cursor !== null) {
        content.push(rule("zero", across(this.cursor), across(this.cursor), top, floor), inside, text("value", right, 15, `${this.plot.x} ${tick_text(Number(this.cursor.toPrecision(4)))}`));
      } else content.push(inside, ...(ends.length <= LABELLED ? end_labels(ends, floor) : []));
      if (this.brush) {
        const [a, b] = [...this.brush].sort((one, two) => one - two);
        content.push(svg("rect", { class: "brush", x: a, y: top, width: b - a, height: floor - top }));
      }
      this.svg.replaceChildren(...content);
      this.lines.forEach((line, n) => {
        const drawn = this.drawn.find((other) => other.name === line.name);
        const point = drawn && (this.cursor === null ? drawn.points.at(-1) : drawn.near);
        this.outputs[n].textContent = point ? this.number(point[1]) : "";
      });
    }

    number(value) {
      return this.base.value ? `${value > 0 ? "+" : ""}${value.toFixed(2)}%` : value_text(value);
    }
  }

  function end_labels(ends, floor) { // the last values, moved apart where they would overlap
    const columns = [];
    for (const end of ends.sort((a, b) => a[0] - b[0])) {
      if (columns.length && end[0] - columns.at(-1).at(-1)[0] < LABEL_WIDTH) columns.at(-1).push(end);
      else columns.push([end]);
    }
    return columns.flatMap((column) => {
      let above = -Infinity;
      return column.sort((a, b) => a[1] - b[1]).map(([x, y, label], n) => {
        above = Math.min(Math.max(y, above + LABEL_GAP), floor + 4 - LABEL_GAP * (column.length - 1 - n));
        return text("end", x + 8, above, label);
      });
    });
  }

  // As a line plot, with labels for x.
  class BarPlot {
    constructor(figure, plot) {
      this.svg = svg("svg", { class: "plot", role: "img", "aria-label": plot.title });
      figure.prepend(this.svg);
      new ResizeObserver(() => figure.clientWidth && this.draw(figure.clientWidth, plot)).observe(figure);
    }

    draw(width, plot) {
      const lines = plot.lines.map((line) => ({ ...line, points: line.points.filter(([, y]) => Math.abs(y) < LARGEST) }));
      const labels = [...new Set(plot.lines.flatMap((line) => line.points.map((point) => point[0])))];
      const values = lines.flatMap((line) => line.points.map((point) => point[1]));
      const narrow = width < 90 * labels.length;
      const box = box_of(width);
      box.floor = box.height - (narrow ? 80 : 50);
      const [low, high] = [lowest([0, ...values]), highest([0, ...values])];
      const down = scale(low - 0.04 * (high - low) * (low < 0), high > low ? high : 1, box.floor, box.top);
      const space = (box.right - box.left) / labels.length;
      const bar = (0.78 * space) / lines.length;
      const groups = lines.map(({ name, look, points }, order) => svg("g", { class: `bars ${look}` }, ...points.map(([label, y]) => {
        const [top, foot] = [down(y), down(0)].sort((a, b) => a - b);
        const x = box.left + space * (labels.indexOf(label) + 0.11) + bar * order;
        const rect = svg("rect", { x, y: top, width: Math.max(0.5, 0.94 * bar), height: foot - top });
        return svg("g", { class: "hover" }, rect, text("value", width - 4, 15, `${name}, ${label}: ${tick_text(Number(y.toPrecision(4)))}`));
      })));
      this.svg.setAttribute("viewBox", `0 0 ${width} ${box.height}`);
      this.svg.replaceChildren(
        ...axis_y(ticks(low, high > low ? high : 1, 7), down, box, plot.y),
        ...groups,
        rule("zero", box.left, box.right, down(0), down(0)),
        ...labels.map((label, n) => {
          const x = box.left + space * (n + 0.5);
          const short = label.replace(" and more", "+").replace(" to ", "-");
          return narrow ? text("tick last", x, box.floor + 12, short, turned(-40, x, box.floor + 12)) : text("tick middle", x, box.floor + 17, label);
        }),
      );
    }
  }

  // -- figures of a page ----------------------------------------------------------------------------

  // The data of a figure is the CSV file that it offers; colours are those of its legend.
  function of_figure(figure, lined) {
    const address = figure.querySelector("a[download]").href;
    const [heads, ...rows] = read_csv(decodeURIComponent(address.slice(address.indexOf(",") + 1)));
    const low = heads.indexOf("lowest");
    const looks = new Map([...figure.querySelectorAll(".legend li")].map((item) => [item.textContent, item.className]));
    const lines = new Map();
    for (const row of rows) {
      if (!lines.has(row[0])) lines.set(row[0], { name: row[0], look: looks.get(row[0]), points: [], band: [] });
      const line = lines.get(row[0]);
      const point = [lined ? Number(row[1]) : row[1], Number(row[2])];
      line.points.push(point);
      if (row[low]) line.band.push([point[0], Number(row[low]), Number(row[low + 1])]);
    }
    const { title, whole, linear } = figure.dataset;
    return { title, x: heads[1], y: heads[2], whole: whole !== undefined, linear: linear !== undefined, lines: [...lines.values()] };
  }

  function read_csv(source) {
    const rows = [[]];
    for (const [, quoted, plain, end] of source.matchAll(/(?:"((?:[^"]|"")*)"|([^,\n]*))(,|\n)/g)) {
      rows.at(-1).push(quoted?.replaceAll('""', '"') ?? plain);
      if (end === "\n") rows.push([]);
    }
    return rows.slice(0, -1);
  }

  for (const figure of document.querySelectorAll("figure.lines")) new LinePlot(figure, of_figure(figure, true));
  for (const figure of document.querySelectorAll("figure.bars")) new BarPlot(figure, of_figure(figure, false));
  return { LinePlot, html };
})();
