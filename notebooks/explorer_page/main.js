"use strict";
/* Tabs, and the address that links to what is shown:

     #format=E4M3&code=0x6C     #format=E2M1&number=5.4     #block=10,20,30,40&outer=1     ...&amax=100&scale=6.5&axis=log */

(() => {
  const { byId } = draw;
  const data = formats.read(byId("data").textContent);
  const TABS = ["bits", "block"];
  let active = "bits",
    timer = null,
    ready = false;

  const bits = bitsView.make(data, later),
    block = blockView.make(data, later);

  function open(name) {
    active = name;
    for (const tab of TABS) {
      byId(tab).hidden = tab !== name;
      byId(`tab-${tab}`).setAttribute("aria-selected", tab === name);
      byId(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
    }
    redraw();
  }

  /** Drawings have the width of their place, which a hidden one does not have. */
  function redraw() {
    if (active === "bits") bits.lines();
    else block.show();
  }

  function address() {
    if (active === "bits") {
      const { format, code, number } = bits.get();
      return (
        `format=${format}&` +
        (number === null ? `code=${card.hex(data.formats[format], code)}` : `number=${numbers.plain(number)}`)
      );
    }
    const { values, outer, step, logarithmic } = block.get();
    const scale = {
      auto: "",
      amax: `&amax=${numbers.plain(outer.value)}`,
      given: `&outer=${numbers.plain(outer.value)}`,
    }[outer.kind];
    const given = step.kind === "given" ? `&scale=${numbers.plain(step.value)}` : "";
    return `block=${values.map(numbers.plain).join(",")}${scale}${given}${logarithmic ? "&axis=log" : ""}`;
  }

  /** Write the address a moment after the last change: browsers refuse too many at once. */
  function later() {
    if (!ready) return;
    clearTimeout(timer);
    timer = setTimeout(write, 200);
  }

  function write() {
    try {
      history.replaceState(null, "", "#" + address());
    } catch {
      // a browser that lets no page from a file do this: links are then made by hand
    }
  }

  /** Pairs of an address; a text that is none gives none. */
  function pairs(text) {
    try {
      return Object.fromEntries(
        text
          .split("&")
          .map((pair) => pair.split("=").map(decodeURIComponent))
          .filter((pair) => pair.length === 2),
      );
    } catch {
      return {};
    }
  }

  function readBits(given) {
    const name = bits.own(given.format ?? bits.get().format),
      fmt = data.formats[name];
    if (!fmt)
      return bits.set({}, `The address asks for the format ${given.format}, which is unknown: choose one above.`);
    if (given.number !== undefined) {
      const { value, note, error } = numbers.parse(given.number);
      if (error) return bits.set({ format: name, code: 0, number: null }, `The address: ${error}.`);
      return bits.set({ format: name, number: value, code: formats.encode(fmt, value) }, note);
    }
    const code =
      given.code === undefined ? 0 : /^(0x[0-9a-f]+|0b[01]+|\d+)$/i.test(given.code) ? Number(given.code) : NaN;
    if (!(code >= 0 && code < 2 ** fmt.bits)) {
      const last = card.hex(fmt, 2 ** fmt.bits - 1);
      return bits.set(
        { format: name, code: 0, number: null },
        `The address asks for code ${given.code}: ${name} has codes 0x0 to ${last}.`,
      );
    }
    bits.set({ format: name, code, number: null });
  }

  function readBlock(given) {
    const { values, note, error } = block.parseList(given.block);
    const kind = given.outer !== undefined ? "given" : given.amax !== undefined ? "amax" : "auto";
    const number = kind === "auto" ? { value: 1 } : numbers.parse(given.outer ?? given.amax);
    const outer = { kind, value: number.value ?? 1 };
    const typed = given.scale === undefined ? { value: 1 } : numbers.parse(given.scale);
    const step = { kind: given.scale === undefined ? "rule" : "given", value: typed.value ?? 1 };
    const wrong = number.error || typed.error || blocks.outerMistake(outer, data) || blocks.scaleMistake(step);
    if (error || wrong) return block.set({}, `The address: ${error || wrong}.`);
    block.set({ values, outer, step, logarithmic: given.axis === "log" }, note);
  }

  function read() {
    const given = pairs(location.hash.slice(1));
    if (given.block !== undefined) {
      readBlock(given);
      open("block");
    } else if (given.format !== undefined || given.code !== undefined || given.number !== undefined) {
      readBits(given);
      open("bits");
    } else open(active);
  }

  for (const name of TABS) {
    byId(`tab-${name}`).addEventListener("click", () => (open(name), later()));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = TABS.find((tab) => tab !== name);
      open(other);
      byId(`tab-${other}`).focus();
      later();
    });
  }
  bits.set({});
  block.set({});
  read();
  ready = true;
  window.addEventListener("hashchange", read);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) redraw();
    width = window.innerWidth;
  });
})();
