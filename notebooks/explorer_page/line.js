"use strict";
/* Number lines: the values around a code, with the interval that rounds to it and the number that did; and all values
   of a small format. */

const numberLine = (() => {
  const { decode, place, at, ends, interval } = formats;
  const { shape, text, line } = draw;
  const MARGIN = 44;

  /** Labels [x, words, ...] in order of importance; those that would touch an earlier one are left out. */
  function label(svg, width, y, labels) {
    const taken = [];
    for (const [x, lines, attributes] of labels) {
      const half = (Math.max(...lines.map((words) => words.length)) * 7.4) / 2 + 5;
      const middle = Math.max(half, Math.min(width - half, x));
      if (taken.some(([from, to]) => middle - half < to && middle + half > from)) continue;
      taken.push([middle - half, middle + half]);
      lines.forEach((words, i) => text(svg, middle, y + 15 * i, words, i ? { class: "muted" } : attributes));
    }
  }

  /** Codes around `code`, ascending: so many on each side as there are. */
  function around(fmt, code, reach) {
    const here = place(fmt, code),
      codes = [];
    for (let where = here - reach; where <= here + reach; where += 1) {
      const near = where === here ? code : at(fmt, where);
      if (near !== null) codes.push(near);
    }
    return codes;
  }

  /** What of the line is shown: from the first to the last value, and a step further where values end. */
  function range(fmt, codes) {
    const values = codes.map((code) => decode(fmt, code)),
      last = values.length - 1;
    const [least, most] = ends(fmt);
    let low = values[0],
      high = values[last];
    if (place(fmt, codes[last]) === most) high += last ? (high - values[last - 1]) * 0.8 : 1;
    if (place(fmt, codes[0]) === least && fmt.min < 0) low -= last ? (values[1] - low) * 0.8 : 1;
    return [low, high];
  }

  function end(svg, x, y, closed) {
    svg.append(
      shape("circle", {
        cx: x,
        cy: y,
        r: 4,
        class: "end",
        fill: closed ? "var(--exponent)" : "var(--panel)",
        stroke: "var(--exponent)",
        "stroke-width": 1.5,
      }),
    );
  }

  /** The number that was typed, above the line, and an arrow to the value that it became. */
  function arrow(svg, width, to, number, value, [low, high]) {
    const inside = number >= low && number <= high,
      number6 = draw.short(number, 6);
    const x = number < low ? 8 : number > high ? width - 8 : to(number);
    const words = inside ? number6 : number < low ? `\u2190 ${number6}` : `${number6} \u2192`;
    const half = words.length * 3.8 + 4,
      target = to(value);
    text(svg, Math.max(half, Math.min(width - half, x)), 13, words, { style: "fill: var(--sign); font-weight: 700" });
    const path = (d, more) => svg.append(shape("path", { d, fill: "none", stroke: "var(--sign)", ...more }));
    path(`M ${x} 19 V 32 H ${target} V 50`, { "stroke-width": 1.5 });
    path(`M ${target - 4} 50 h 8 l -4 8 z`, { fill: "var(--sign)" });
    if (inside) path(`M ${x} 32 V 74`, { "stroke-dasharray": "2 3" });
  }

  /** The neighbourhood of a code; `number` is null, or the number that became the code. */
  function near(where, fmt, code, number) {
    const value = decode(fmt, code);
    const { svg, width } = draw.canvas(where, 126, `Number line around ${numbers.exact(value)}`);
    if (!Number.isFinite(value)) return text(svg, width / 2, 60, "not on the number line", { class: "muted" });
    const codes = around(fmt, code, fmt.kind === "exponent" ? 2 : width < 520 ? 2 : 4);
    const [low, high] = range(fmt, codes);
    const to = (v) => MARGIN + ((Math.max(low, Math.min(high, v)) - low) / (high - low)) * (width - 2 * MARGIN);
    const ticks = codes.map((near) => [near, to(decode(fmt, near))]);
    const owned = interval(fmt, code),
      y = 74;
    const from = owned.low === -Infinity ? 0 : to(owned.low),
      until = owned.high === Infinity ? width : to(owned.high);
    svg.append(
      shape("rect", {
        x: from,
        y: y - 14,
        width: Math.max(until - from, 0),
        height: 28,
        rx: 3,
        fill: "var(--interval)",
        class: "interval",
      }),
    );
    line(svg, 0, y, width, y);
    for (const [near, x] of ticks) {
      const own = near === code;
      line(
        svg,
        x,
        y - (own ? 14 : 7),
        x,
        y + (own ? 14 : 7),
        own ? { "stroke-width": 3, style: "stroke: var(--exponent)" } : {},
      );
    }
    if (owned.low > low) end(svg, from, y, owned.lowClosed);
    if (owned.high < high) end(svg, until, y, owned.highClosed);
    ticks.sort(([a], [b]) => Math.abs(place(fmt, a) - place(fmt, code)) - Math.abs(place(fmt, b) - place(fmt, code)));
    const words = (near) => [draw.short(decode(fmt, near), 6), card.hex(fmt, near)];
    label(
      svg,
      width,
      y + 30,
      ticks.map(([near, x]) => [x, words(near), near === code ? { style: "font-weight: 700" } : {}]),
    );
    if (number !== null && !Number.isNaN(number)) arrow(svg, width, to, number, value, [low, high]);
  }

  /** Every value of a format of up to 8 bits, to scale; wider formats and powers of two hide the figure. */
  function whole(where, caption, figure, fmt, code) {
    figure.hidden = !fmt.table || fmt.kind === "exponent";
    if (figure.hidden) return;
    const values = [...new Set(fmt.table.filter(Number.isFinite).map((v) => v + 0))].sort((a, b) => a - b);
    const { svg, width } = draw.canvas(where, 48, `All ${values.length} values of ${fmt.name}`);
    const low = values[0],
      high = values.at(-1),
      y = 18;
    const to = (v) => MARGIN + ((v - low) / (high - low)) * (width - 2 * MARGIN);
    line(svg, to(low), y, to(high), y);
    for (const v of values) line(svg, to(v), y - 7, to(v), y + 7, { "stroke-width": values.length > 64 ? 0.7 : 1.2 });
    const here = decode(fmt, code);
    if (Number.isFinite(here))
      line(svg, to(here), y - 12, to(here), y + 12, {
        "stroke-width": 3,
        style: "stroke: var(--exponent)",
        class: "here",
      });
    const order = [low, high, 0, ...(values.length <= 64 ? [...values].reverse() : [low / 2, high / 2])];
    label(
      svg,
      width,
      y + 27,
      [...new Set(order)].map((v) => [to(v), [draw.short(v, 6)], { class: "muted" }]),
    );
    caption.textContent = `All ${values.length} values of ${fmt.name}, to scale.`;
  }

  return { near, whole };
})();
