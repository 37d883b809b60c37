"use strict";
/* Elements, formulas and SVG: what both views draw with. */

const draw = (() => {
  const SVG = "http://www.w3.org/2000/svg"; // a name of XML, nothing that is loaded

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  /** An HTML element: attributes ("onclick": a listener), children (nodes or texts). */
  function element(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  /** An SVG element. */
  function shape(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  const byId = (id) => document.getElementById(id);

  /** A text of `fourbit show` with the signs of print: a cross for x, a minus. */
  function printed(text) {
    return text.replaceAll(" x ", " \u00d7 ").replace(/-(?=[\d.(]|inf)|(?<= )-(?= )/g, "\u2212");
  }

  /** Pieces of a formula (see card.js) as nodes. */
  function pieces(list) {
    return list.map(({ text, role, raised }) =>
      element(raised ? "sup" : "span", { class: role || null }, printed(text)),
    );
  }

  /** A text with its powers raised: 2^-9, 2^(13 - 7). */
  function rich(text) {
    return element(
      "span",
      {},
      ...printed(text)
        .split(/\^(\(?\u2212?\d+\)?)/)
        .map((part, i) => (i % 2 ? element("sup", {}, part) : part)),
    );
  }

  /** A number, exact, as nodes. */
  function exact(x) {
    return element("span", {}, ...pieces(card.numberPieces(x)));
  }

  /** A number with up to `digits` significant digits. */
  function short(x, digits = 5) {
    return Number.isNaN(x) ? "NaN" : printed(numbers.general(x, digits));
  }

  /** Pairs [name, node or text] into a description list. */
  function facts(list, pairs) {
    list.replaceChildren(
      ...pairs.flatMap(([name, ...parts]) => [element("dt", {}, name), element("dd", {}, ...parts)]),
    );
  }

  /** An SVG of the width that its place has, so that its text has the size of the page's. */
  function canvas(place, height, label) {
    const width = Math.max(place.clientWidth, 260);
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
    place.replaceChildren(svg);
    return { svg, width };
  }

  function line(svg, x1, y1, x2, y2, attributes = {}) {
    svg.append(shape("line", { x1, y1, x2, y2, class: "rule", ...attributes }));
  }

  function text(svg, x, y, words, attributes = {}) {
    svg.append(shape("text", { x, y, "text-anchor": "middle", ...attributes }, words));
  }

  return { element, shape, byId, printed, pieces, rich, exact, short, facts, canvas, line, text };
})();
