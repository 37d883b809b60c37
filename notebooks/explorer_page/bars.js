"use strict";
/* Sixteen values as bars: a chart to drag, and a chart of what they become in a block format. */

const bars = (() => {
  const { shape, text, line } = draw;
  const LEFT = 54,
    COUNT = blocks.SIZE;
  const DECADES = 3; // below the largest magnitude, on a logarithmic axis

  /** The least of a few digits times a power of ten that leaves room above the largest finite magnitude. */
  function ceiling(values) {
    const amax = Math.max(0, ...values.filter(Number.isFinite).map(Math.abs));
    if (amax === 0) return 1;
    for (let power = Math.floor(Math.log10(amax)) - 1; ; power += 1)
      for (const digit of [1, 1.5, 2, 3, 4, 6, 8]) {
        const top = Number(`${digit}e${power}`);
        if (top >= amax * 1.05 || top > 1e308) return top;
      }
  }

  /** Between values and heights -1 to 1. */
  function axis(top, logarithmic) {
    const cut = (t) => Math.max(-1, Math.min(1, t));
    if (!logarithmic) return { to: (v) => cut(v / top), from: (t) => t * top };
    const least = top / 10 ** DECADES;
    return {
      to: (v) => (Math.abs(v) <= least ? 0 : cut((Math.sign(v) * Math.log10(Math.abs(v) / least)) / DECADES)),
      from: (t) => (Math.abs(t) < 0.02 ? 0 : Math.sign(t) * least * 10 ** (Math.abs(t) * DECADES)),
    };
  }

  /** A dragged value as a short decimal. */
  function tidy(v, top, logarithmic) {
    if (logarithmic) return Number(v.toPrecision(3));
    return Number((Math.round(v / (top / 100)) * (top / 100)).toPrecision(6)) + 0;
  }

  function grid(svg, width, height, { to }, top, logarithmic) {
    const marks = logarithmic ? [1, 1e-1, 1e-2].flatMap((m) => [top * m, -top * m]) : [top, top / 2, -top / 2, -top];
    for (const v of [...marks, 0]) {
      const y = height / 2 - to(v) * (height / 2 - 8);
      line(svg, LEFT, y, width, y, { class: v === 0 ? "rule" : "grid" });
      text(svg, LEFT - 6, y + 4, draw.short(v, 3).replace("e+", "e"), {
        "text-anchor": "end",
        class: "muted",
        "font-size": 11,
      });
    }
  }

  /** The word of a value that has no height, upright where there is no room for it. */
  function special(group, x, y, words, room) {
    const upright = room < 34 ? { transform: `rotate(-90 ${x} ${y})`, "text-anchor": "start", dy: 4 } : {};
    text(group, x, y, words, { style: "fill: var(--warn); font-weight: 700", ...upright });
  }

  /** A chart whose bars are dragged or moved with keys; `move(index, value, done)` hears of it. */
  function input(place, move) {
    let top = 1,
      logarithmic = false,
      svg,
      width,
      held = null;
    const height = 230;

    const scale = () => axis(top, logarithmic);
    const valueAt = (event) => {
      const box = svg.getBoundingClientRect();
      return tidy(
        scale().from(Math.max(-1, Math.min(1, (height / 2 - (event.clientY - box.top)) / (height / 2 - 8)))),
        top,
        logarithmic,
      );
    };

    function press(event) {
      const index = Math.floor(((event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT)) * COUNT);
      if (index < 0 || index >= COUNT) return;
      held = index;
      svg.setPointerCapture(event.pointerId);
      move(held, valueAt(event), false);
    }

    function release() {
      if (held === null) return;
      const index = held;
      held = null;
      move(index, null, true);
    }

    function key(event, index, value) {
      const start = Number.isFinite(value) ? value : 0,
        sign = event.key.endsWith("Down") ? -1 : 1;
      const logStep = event.key.startsWith("Page") ? 2 : 1.1;
      const linear = start + (sign * top) / (event.key.startsWith("Page") ? 10 : 100);
      const stepped = logarithmic && start !== 0 ? start * (start * sign > 0 ? logStep : 1 / logStep) : linear;
      const next = {
        ArrowUp: stepped,
        ArrowDown: stepped,
        PageUp: stepped,
        PageDown: stepped,
        Home: -top,
        End: top,
        0: 0,
      }[event.key];
      if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move(index, tidy(next, top, logarithmic), true);
    }

    function column(value, index) {
      const step = (width - LEFT) / COUNT,
        x = LEFT + index * step,
        { to } = scale(),
        middle = height / 2;
      const finite = Number.isFinite(value),
        length = finite ? to(value) * (middle - 8) : 0;
      const words = numbers.plain(value);
      const group = shape("g", {
        role: "slider",
        tabindex: 0,
        "aria-orientation": "vertical",
        "aria-label": `value ${index + 1}`,
        "data-index": index,
        "aria-valuemin": -top,
        "aria-valuemax": top,
        "aria-valuenow": finite ? value : 0,
        "aria-valuetext": words,
        onkeydown: (event) => key(event, index, value),
      });
      group.append(shape("rect", { class: "column", x, y: 0, width: step, height, rx: 4 }));
      if (finite)
        group.append(
          shape("rect", {
            class: "bar",
            x: x + step * 0.18,
            width: step * 0.64,
            y: middle - Math.max(length, 0.75),
            height: Math.max(Math.abs(length), 1.5),
            rx: 2,
            fill: "var(--accent)",
          }),
        );
      else special(group, x + step / 2, middle - 8, words, step);
      return group;
    }

    function show(values, isLogarithmic) {
      logarithmic = isLogarithmic;
      if (held === null) top = ceiling(values);
      const focused = document.activeElement?.closest?.("#bars [role=slider]")?.dataset.index;
      if (!svg || held === null) {
        ({ svg, width } = draw.canvas(place, height, ""));
        for (const name of ["role", "aria-label"]) svg.removeAttribute(name);
        svg.addEventListener("pointerdown", press);
        svg.addEventListener("pointermove", (event) => held !== null && move(held, valueAt(event), false));
        for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, release);
      } else svg.replaceChildren();
      grid(svg, width, height, scale(), top, logarithmic);
      values.forEach((value, index) => svg.append(column(value, index)));
      if (focused !== undefined) svg.querySelector(`[data-index="${focused}"]`).focus();
    }

    return { show };
  }

  /** What the values of a block become: pale bars, a stroke at each new value, the dead zone shaded. */
  function result(place, made, logarithmic) {
    const height = 170,
      middle = height / 2,
      reach = middle - 8;
    const top = ceiling([...made.x, ...made.values]),
      scale = axis(top, logarithmic);
    const { svg, width } = draw.canvas(place, height, `${made.block.name}: sixteen values and what they become`);
    const step = (width - LEFT) / COUNT,
      dead = made.step / 4;
    if (made.finite) {
      const zone = Math.max(scale.to(made.scale === 0 ? top : dead) * reach, 0);
      svg.append(
        shape("rect", {
          class: "dead",
          x: LEFT,
          width: width - LEFT,
          y: middle - zone,
          height: 2 * zone,
          fill: "var(--dead)",
        }),
      );
    }
    grid(svg, width, height, scale, top, logarithmic);
    made.x.forEach((value, i) => {
      const x = LEFT + i * step;
      if (Number.isFinite(value)) {
        const length = scale.to(value) * reach;
        svg.append(
          shape("rect", {
            x: x + step * 0.2,
            width: step * 0.6,
            y: middle - Math.max(length, 0),
            height: Math.abs(length),
            fill: "var(--bar)",
          }),
        );
      }
      if (!made.finite) return;
      const y = middle - scale.to(made.values[i]) * reach;
      line(svg, x + step * 0.08, y, x + step * 0.92, y, {
        "stroke-width": 2.6,
        style: "stroke: var(--series)",
        class: "became",
      });
    });
    if (!made.finite)
      text(svg, (LEFT + width) / 2, middle - 10, "every value becomes NaN", {
        style: "fill: var(--warn); font-weight: 700",
      });
  }

  return { input, result };
})();
