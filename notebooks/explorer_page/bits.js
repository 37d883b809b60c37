"use strict";
/* The bit explorer: one code of a format, or the number that became it. State: {format, code, number}; number is null
   where bits were switched. */

const bitsView = (() => {
  const { element, byId } = draw;
  const { decode, encode, neighbours, interval } = formats;

  /** What a format is, in a line. */
  function about(fmt) {
    const widths = card.fields(fmt).map(({ name, width }) => (name === "sign" ? "sign" : `${width} ${name}`));
    const bias = fmt.kind === "fixed" ? "" : `, bias ${fmt.bias}`;
    const specials =
      fmt.specials === "ieee"
        ? "infinities and NaN"
        : fmt.specials === "nan"
          ? "NaN, no infinity"
          : "no NaN, no infinity";
    const range = [numbers.exact(fmt.min), numbers.exact(fmt.max)].join(" to ");
    const least = numbers.exact(fmt.min_subnormal);
    return `${fmt.bits} bits: ${widths.join(", ")}${bias}. ${range}, least positive ${least}; ${specials}.`;
  }

  /** Buttons for the bits of a format, the highest first. */
  function bitButtons(fmt, toggle) {
    let index = fmt.bits;
    return card.fields(fmt).map(({ role, name, width }) => {
      const buttons = Array.from({ length: width }, () => {
        const bit = (index -= 1);
        return element("button", {
          type: "button",
          class: "bit",
          "data-bit": bit,
          onclick: () => toggle(bit),
          onkeydown: walk,
        });
      });
      return element(
        "div",
        { class: `field ${role}` },
        element("span", { class: "name" }, name),
        element("div", { class: "bits" }, ...buttons),
      );
    });
  }

  /** Arrow keys walk from bit to bit. */
  function walk(event) {
    const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    const next = step && byId("bitrow").querySelector(`[data-bit="${Number(event.target.dataset.bit) + step}"]`);
    if (!next) return;
    event.preventDefault();
    next.focus();
  }

  function showBits(fmt, code) {
    let top = fmt.bits;
    for (const { name, width } of card.fields(fmt)) {
      for (let bit = top - 1; bit >= top - width; bit -= 1) {
        const button = byId("bitrow").querySelector(`[data-bit="${bit}"]`);
        const set = Math.floor(code / 2 ** bit) % 2;
        button.textContent = set;
        button.setAttribute("aria-pressed", set === 1);
        button.setAttribute("aria-label", width === 1 ? `${name} bit` : `${name} bit ${bit - (top - width)}`);
      }
      top -= width;
    }
  }

  /** The sentence about a number halfway between two values, or "". */
  function tie(fmt, code, number) {
    if (!Number.isFinite(decode(fmt, code)) || !Number.isFinite(number) || number === 0) return "";
    const { low, high } = interval(fmt, code);
    if (number !== low && number !== high) return "";
    const winner = fmt.kind === "exponent" ? "the upper one" : "the even code";
    return `It lies halfway between two values: the tie goes to ${winner}.`;
  }

  /** What became of the typed number, as nodes. */
  function became(fmt, code, number) {
    if (number === null) return [];
    const value = decode(fmt, code),
      error = value - number;
    const start = [draw.short(number, 9), " becomes ", draw.exact(value)];
    const policy = card.policy(fmt, number);
    if (!Number.isFinite(error)) return [...start, draw.rich(policy ? `: ${policy}.` : ".")];
    if (error === 0) return [...start, ", without error."];
    const share = number === 0 ? "" : `, ${numbers.general(Math.abs(error / number) * 100, 4)} % of the number`;
    const size = `: an error of ${error > 0 ? "+" : ""}${numbers.general(error, 6)}${share}.`;
    const why = policy ? `The reason: ${policy}.` : tie(fmt, code, number);
    return [...start, draw.rich(`${size} ${why}`)];
  }

  function stepButton(button, fmt, code) {
    button.disabled = code === null;
    button.querySelector(".at").replaceChildren(...(code === null ? ["none"] : [draw.exact(decode(fmt, code))]));
    button.setAttribute(
      "aria-label",
      code === null ? "no neighbour on this side" : `go to ${numbers.exact(decode(fmt, code))}`,
    );
  }

  function showFacts(fmt, code) {
    const value = decode(fmt, code),
      finite = Number.isFinite(value);
    const rows = [["code", `${card.hex(fmt, code)} = 0b${card.binary(code, fmt.bits)} = ${code}`]];
    for (const [name, words] of card.parts(fmt, code).slice(1)) rows.push([name, draw.rich(words)]);
    rows.push(["value", draw.exact(value)]);
    if (finite) {
      for (const [near, side] of neighbours(fmt, code).map((near, i) => [near, ["below", "above"][i]]))
        rows.push([
          `next ${side}`,
          ...(near === null ? ["none"] : [draw.exact(decode(fmt, near)), ` (${card.hex(fmt, near)})`]),
        ]);
      rows.push(["rounds here", draw.rich(card.intervalText(fmt, code))]);
    } else rows.push(["encoding", draw.rich(card.never(fmt, code))]);
    draw.facts(byId("facts"), rows);
  }

  /** The table of what a number becomes under every rounding. */
  function showRoundings(fmt, number, names) {
    const rows = card.roundingRows(fmt, number, names).map((cells) =>
      element("tr", {}, ...cells.map((words) => element("td", {}, draw.rich(words)))),
    );
    byId("roundings").replaceChildren(...rows);
  }

  /** A view of `data`; `changed` is called with the state after every change. */
  function make(data, changed) {
    let state = { format: "E4M3", code: encode(data.formats.E4M3, 100), number: 100 }; // a tie
    const fmt = () => data.formats[state.format];
    const note = (words) => (byId("bits-note").textContent = words);

    function set(next, words = "") {
      const other = next.format !== undefined && next.format !== state.format;
      state = { ...state, ...next };
      if (other || !byId("bitrow").children.length) byId("bitrow").replaceChildren(...bitButtons(fmt(), toggle));
      show();
      note(words);
      changed();
    }

    function toggle(bit) {
      const weight = 2 ** bit,
        isSet = Math.floor(state.code / weight) % 2;
      set({ code: state.code + (isSet ? -weight : weight), number: null });
      byId("number").value = numbers.plain(decode(fmt(), state.code));
    }

    function go(code) {
      if (code === null) return;
      set({ code, number: null });
      byId("number").value = numbers.plain(decode(fmt(), code));
    }

    function type(text) {
      const { value, note: words, error } = numbers.parse(text);
      byId("number").setAttribute("aria-invalid", Boolean(error));
      if (error) return note(`${error}. The last number stays.`);
      set({ number: value, code: encode(fmt(), value) }, words);
    }

    /** The same number in another format. */
    function choose(name) {
      const number = state.number ?? decode(fmt(), state.code);
      set({ format: name, number, code: encode(data.formats[name], number) });
    }

    function show() {
      const { code, number } = state,
        value = decode(fmt(), code);
      byId("number").setAttribute("aria-invalid", false);
      for (const radio of byId("formats").querySelectorAll("input")) radio.checked = radio.value === state.format;
      byId("about-format").replaceChildren(draw.rich(about(fmt())));
      showBits(fmt(), code);
      const named = element("span", { class: "code" }, `${card.hex(fmt(), code)} = `);
      byId("value").replaceChildren(named, draw.exact(value));
      byId("formula").replaceChildren(...draw.pieces(card.formula(fmt(), code)));
      byId("became").replaceChildren(...became(fmt(), code, number));
      showRoundings(fmt(), number ?? value, data.roundings);
      const [below, above] = Number.isFinite(value) ? neighbours(fmt(), code) : [null, null];
      stepButton(byId("below"), fmt(), below);
      stepButton(byId("above"), fmt(), above);
      showFacts(fmt(), code);
      byId("show-command").textContent = `fourbit show ${state.format} ${card.hex(fmt(), code)}`;
      byId("card").textContent = card.text(fmt(), code);
      lines();
    }

    function lines() {
      numberLine.near(byId("line"), fmt(), state.code, state.number);
      numberLine.whole(byId("whole"), byId("whole-caption"), byId("whole-figure"), fmt(), state.code);
    }

    const step = (side) => () => Number.isFinite(decode(fmt(), state.code)) && go(neighbours(fmt(), state.code)[side]);
    byId("below").addEventListener("click", step(0));
    byId("above").addEventListener("click", step(1));
    byId("number").addEventListener("input", (event) => type(event.target.value));
    function offer(name) {
      const radio = element("input", { type: "radio", name: "format", value: name, onchange: () => choose(name) });
      byId("formats").append(element("label", {}, radio, element("span", {}, name)));
    }

    /** Take a format of the reader's own into the list. Returns its name, or null for a name that writes none down. */
    function own(words) {
      const found = formats.named(words, data.formats);
      if (found && !data.formats[found.name]) {
        data.formats[found.name] = found;
        offer(found.name);
      }
      return found && found.name;
    }

    byId("own").addEventListener("change", (event) => {
      const name = own(event.target.value);
      event.target.setAttribute("aria-invalid", name === null);
      if (name === null) return note(`${event.target.value} writes no format down: E3M2FN, E3M4, UE5M3FN, INT6, S3F4.`);
      choose(name);
    });
    Object.keys(data.formats).forEach(offer);
    const start = () => {
      byId("number").value =
        state.number === null ? numbers.plain(decode(fmt(), state.code)) : numbers.plain(state.number);
    };
    return { set: (next, words) => (set(next, words), start()), get: () => state, lines, own };
  }

  return { make };
})();
