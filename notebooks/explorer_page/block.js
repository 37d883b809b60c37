"use strict";
/* The block explorer. State: {values (1 to 16 doubles), outer and step ({kind, value}: outer and block scale, see
   blocks.js), logarithmic}. */

const blockView = (() => {
  const { element, byId } = draw;
  const SIZE = blocks.SIZE;
  const TITLES = { NVFP4: "NVFP4", NVFP4_46: "NVFP4, four over six", MXFP4: "MXFP4" };

  const four = (list) => [...list, ...list, ...list, ...list];
  const PRESETS = {
    crowd: [6, 4.6, -5, 4.4, 1.2, -0.7, 3, 0.4, -4.7, 2.1, 5.2, -1.6, 0.9, 4.9, -3.4, 0.2], // much near the largest
    outlier: [0.31, -0.82, 1.1, 0.47, -1.4, 0.9, 9.3, -0.6, 0.22, 1.7, -0.35, 0.74, -2.1, 0.15, -0.93, 0.55],
    gaussian: null, // drawn anew each time
    tens: four([10, 20, 30, 40]),
    zeros: Array(SIZE).fill(0),
  };
  const AUTO = { kind: "auto", value: 1 },
    RULE = { kind: "rule", value: 1 };

  /** Sixteen draws of a normal distribution (Box and Muller), to three decimals. */
  function gaussian() {
    return Array.from({ length: SIZE }, () => {
      const radius = Math.sqrt(-2 * Math.log(1 - Math.random()));
      return Math.round(radius * Math.cos(2 * Math.PI * Math.random()) * 1000) / 1000 + 0;
    });
  }

  /** What a text of several numbers says: {values, note} or {error}. */
  function parseList(text) {
    const words = text
      .replace(/[[\](){}]/g, " ")
      .split(/[\s,;]+/)
      .filter(Boolean);
    if (words.length === 0)
      return { error: "An empty block: there is nothing to quantize; type up to sixteen numbers" };
    const read = words.slice(0, SIZE).map(numbers.parse),
      bad = read.find((r) => r.error);
    if (bad) return bad;
    const notes = read.map((r) => r.note).filter(Boolean);
    if (words.length > SIZE) notes.push(`${words.length} values: a block holds sixteen, the first ones are taken`);
    if (words.length < SIZE) notes.push(`${words.length} of sixteen values: the others are 0`);
    return { values: read.map((r) => r.value), note: notes.join("; ") };
  }

  /** What is special about a quantized block, in sentences. */
  function remarks(made, error) {
    const { block, amax, finite, scale, x, step, candidates } = made,
      list = [];
    if (!finite) {
      const nan = card.hex(block.scale, block.scale.nan_code);
      return [`NaN or Inf among the values: the block's scale is NaN (${nan}) and every value decodes to NaN.`];
    }
    if (candidates) {
      const [six, other] = candidates,
        won = other.error < six.error ? other : six;
      const said = candidates.map((c) => `${numbers.general(c.error, 5)} for ${c.largest}`).join(", ");
      list.push(`The largest magnitude is mapped to ${won.largest}: squared error ${said}.`);
    }
    if (amax === 0) list.push("All values are zero, and stay zero.");
    else if (scale === 0) list.push("The block's scale underflows to 0: every value decodes to zero.");
    else if (error.vanished)
      list.push(`${error.vanished} of ${x.filter((v) => v !== 0).length} values that are not zero become zero.`);
    const cut = scale === 0 ? 0 : x.filter((v) => Math.abs(v) > block.element.max * step * (1 + 2 ** -20)).length;
    const saturate = cut === 1 ? "value lies beyond it and saturates" : "values lie beyond it and saturate";
    if (cut) list.push(`The largest value is ${block.element.max} x scale: ${cut} ${saturate}.`);
    return list;
  }

  /** What the format is, in a line. */
  function subtitle({ element: fmt, scale, outer_max: outerMax, rule }) {
    const outer = outerMax === null ? "no outer scale" : `outer = amax / ${outerMax}`;
    const how = {
      nvfp4: "largest magnitude to 6",
      four_over_six: "largest to 6 or 4, the better",
      rceil: "power of two, rounded up",
    }[rule];
    return `${fmt.name} elements, ${scale.name} scale: ${how}; ${outer}`;
  }

  function facts(made, error) {
    const { block, scaleCode, scale, outer, step, scope } = made;
    const code = `${card.hex(block.scale, scaleCode)} = 0b${card.binary(scaleCode, block.scale.bits)}`;
    const value = (name, x, ...more) => [
      name,
      element("span", { "data-value": numbers.plain(x) }, draw.short(x, 7)),
      ...more,
    ];
    const rows = [value("block scale", scale, ` (${code})`)];
    const from =
      scope === undefined ? " (given)" : scope === 0 ? "" : ` = ${draw.short(scope, 4)} / ${block.outer_max}`;
    rows.push(outer === null ? ["outer scale", "none"] : value("outer scale", outer, from));
    rows.push(value("dead zone", step / 4, scale === 0 ? ": everything" : made.finite ? " and less" : ""));
    const decibels = Number.isNaN(error.decibels) ? "" : ` (${draw.short(error.decibels, 4)} dB)`;
    rows.push(value("mean square", error.mean), value("relative", error.relative, decibels));
    rows.push(value("largest error", error.largest));
    return rows;
  }

  function row(made, i) {
    const { block, codes, values, x } = made,
      number = formats.decode(block.element, codes[i]);
    const cell = (v, digits, attributes = {}) =>
      element("td", { "data-value": numbers.plain(v), title: numbers.exact(v), ...attributes }, draw.short(v, digits));
    const vanished = x[i] !== 0 && values[i] === 0 ? { class: "zero" } : {};
    return element(
      "tr",
      {},
      cell(x[i], 5),
      element("td", { "data-code": codes[i] }, card.binary(codes[i], block.element.bits)),
      cell(number, 3),
      cell(values[i], 5, vanished),
      cell(values[i] - x[i], 3),
    );
  }

  function makeCard(name, data) {
    const heads = ["value", "code", "E2M1", "becomes", "error"].map((words) => element("th", { scope: "col" }, words));
    const parts = {
      chart: element("div"),
      facts: element("dl", { class: "facts" }),
      remarks: element("ul"),
      rows: element("tbody"),
    };
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), parts.rows);
    const style = `--series: var(--${name.toLowerCase().replace("_", "-")})`;
    const about = element("p", { class: "sub" }, subtitle(blocks.described(name, data)));
    parts.node = element(
      "article",
      { class: "card", id: `card-${name}`, style, "aria-label": TITLES[name] },
      element("h2", {}, TITLES[name]),
      about,
      parts.chart,
      parts.facts,
      parts.remarks,
      element("div", { class: "scroll" }, table),
    );
    return parts;
  }

  function showCard(parts, made, logarithmic) {
    const error = blocks.error(made);
    bars.result(parts.chart, made, logarithmic);
    draw.facts(parts.facts, facts(made, error));
    parts.remarks.replaceChildren(...remarks(made, error).map((words) => element("li", {}, draw.rich(words))));
    parts.rows.replaceChildren(...made.x.map((_, i) => row(made, i)));
  }

  /** A view of `data`; `changed` is called after every change. */
  function make(data, changed) {
    let state = { values: PRESETS.crowd, outer: AUTO, step: RULE, logarithmic: false };
    const cards = Object.fromEntries(Object.keys(data.blocks).map((name) => [name, makeCard(name, data)]));
    const chart = bars.input(byId("bars"), move);
    const full = () => [...state.values, ...Array(SIZE - state.values.length).fill(0)];
    const note = (words) => (byId("block-note").textContent = words);

    /** Take a new state; `typing` is the input that the change comes from and that keeps its text. */
    function set(next, words = "", typing = null) {
      state = { ...state, ...next };
      for (const input of document.querySelectorAll("#block input[aria-invalid]"))
        input.removeAttribute("aria-invalid");
      if (typing !== byId("outer-value")) byId("outer-value").value = numbers.plain(state.outer.value);
      byId("outer-kind").value = state.outer.kind;
      byId("outer-value").hidden = state.outer.kind === "auto";
      if (typing !== byId("scale-value")) byId("scale-value").value = numbers.plain(state.step.value);
      byId("scale-kind").value = state.step.kind;
      byId("scale-value").hidden = state.step.kind === "rule";
      if (typing !== byId("list")) byId("list").value = state.values.map(numbers.plain).join(" ");
      byId("cells")
        .querySelectorAll("input")
        .forEach((input, i) => {
          if (input !== typing) input.value = numbers.plain(full()[i]);
        });
      for (const radio of byId("axis").querySelectorAll("input"))
        radio.checked = (radio.value === "log") === state.logarithmic;
      show();
      note(words);
      changed();
    }

    function show() {
      chart.show(full(), state.logarithmic);
      for (const [name, parts] of Object.entries(cards))
        showCard(parts, blocks.quantize(state.values, name, state.outer, data, state.step), state.logarithmic);
    }

    function refuse(input, words) {
      input.setAttribute("aria-invalid", true);
      note(`${words}. The last block stays.`);
    }

    function move(index, value, done) {
      const values = full();
      if (value !== null) values[index] = value;
      if (value !== null || done) set({ values });
    }

    function typeCell(input, index) {
      const { value, note: words, error } = numbers.parse(input.value);
      if (error) return refuse(input, error);
      const values = full();
      values[index] = value;
      set({ values }, words, input);
    }

    function typeList(input) {
      const { values, note: words, error } = parseList(input.value);
      if (error) return refuse(input, error);
      set({ values }, words, input);
    }

    function typeOuter(input) {
      const { value, note: words, error } = numbers.parse(input.value);
      const outer = { kind: byId("outer-kind").value, value };
      const mistake = error || blocks.outerMistake(outer, data);
      if (mistake) return refuse(input, mistake);
      set({ outer }, words, input);
    }

    function typeScale(input) {
      const { value, note: words, error } = numbers.parse(input.value);
      const step = { kind: "given", value };
      const mistake = error || blocks.scaleMistake(step);
      if (mistake) return refuse(input, mistake);
      set({ step }, words, input);
    }

    function chooseOuter(kind) {
      const wanted = { kind, value: state.outer.value };
      set({ outer: blocks.outerMistake(wanted, data) ? { kind, value: 1 } : wanted });
    }

    function start(name) {
      const values = PRESETS[name] ?? gaussian();
      const outer = name === "tens" ? { kind: "given", value: 1 } : AUTO; // the published example
      set({ values, outer, step: RULE, logarithmic: name === "outlier" });
    }

    byId("cards").append(...Object.values(cards).map((parts) => parts.node));
    for (const name of Object.keys(PRESETS))
      byId("presets").append(
        element("button", { type: "button", "data-preset": name, onclick: () => start(name) }, name),
      );
    for (const [value, words] of [
      ["linear", "linear"],
      ["log", "logarithmic"],
    ]) {
      const radio = element("input", {
        type: "radio",
        name: "axis",
        value,
        onchange: () => set({ logarithmic: value === "log" }),
      });
      byId("axis").append(element("label", {}, radio, element("span", {}, words)));
    }
    for (let i = 0; i < SIZE; i += 1) {
      const oninput = (event) => typeCell(event.target, i);
      byId("cells").append(
        element("input", {
          type: "text",
          autocomplete: "off",
          spellcheck: "false",
          "aria-label": `value ${i + 1}`,
          "aria-describedby": "block-note",
          oninput,
        }),
      );
    }
    byId("list").addEventListener("input", (event) => typeList(event.target));
    byId("outer-value").addEventListener("input", (event) => typeOuter(event.target));
    byId("outer-kind").addEventListener("change", (event) => chooseOuter(event.target.value));
    byId("scale-value").addEventListener("input", (event) => typeScale(event.target));
    byId("scale-kind").addEventListener("change", (event) => set({ step: { ...state.step, kind: event.target.value } }));
    return { set, get: () => state, show, parseList };
  }

  return { make };
})();
