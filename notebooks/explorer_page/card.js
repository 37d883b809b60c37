"use strict";
/* One code in words: the texts that `fourbit show` prints, and the pieces of them that a page colours.

   A piece of a formula is {text, role, raised}: role "sign", "exponent", "mantissa" or ""; raised: an exponent. */

const card = (() => {
  const { exact, general } = numbers;
  const { decode, split, place, neighbours, interval, signBits } = formats;

  function hex(fmt, code) {
    return (
      "0x" +
      code
        .toString(16)
        .toUpperCase()
        .padStart(Math.ceil(fmt.bits / 4), "0")
    );
  }

  function binary(value, width) {
    return value.toString(2).padStart(width, "0");
  }

  /** The fields of a format from the top bit down: [{role, name, width}]. */
  function fields(fmt) {
    const list = [];
    const add = (role, name, width) => width > 0 && list.push({ role, name, width });
    if (fmt.kind === "fixed") {
      add("sign", "sign", 1);
      add("exponent", "integer", fmt.bits - fmt.mantissa_bits - 1);
      add("mantissa", "fraction", fmt.mantissa_bits);
    } else {
      add("sign", "sign", signBits(fmt));
      add("exponent", "exponent", fmt.exponent_bits);
      add("mantissa", "mantissa", fmt.mantissa_bits);
    }
    return list;
  }

  const piece = (text, role = "", raised = false) => ({ text: String(text), role, raised });

  /** An exact number as pieces, its power of two raised. */
  function numberPieces(x) {
    const [base, power] = exact(x).split("^");
    return power === undefined ? [piece(base)] : [piece(base), piece(power, "", true)];
  }

  function special(fmt, code) {
    if (fmt.kind === "exponent") return "the last code: NaN";
    if (fmt.specials === "nan")
      return fmt.signed ? "all bits of exponent and mantissa set: NaN, of either sign" : "all bits set: NaN";
    const zero = !Number.isNaN(decode(fmt, code));
    return `exponent all ones, mantissa ${zero ? "zero: infinity" : "not zero: NaN"}`;
  }

  function product(fmt, code) {
    if (fmt.kind === "exponent") return [piece("2"), piece(code, "exponent", true), piece(` - ${fmt.bias}`, "", true)];
    const { sign, exponent, mantissa } = split(fmt, code);
    const start = fmt.signed ? [piece("(-1)"), piece(sign, "sign", true), piece(" x 2")] : [piece("2")];
    return [
      ...start,
      piece(Math.max(exponent, 1), "exponent", true),
      piece(` - ${fmt.bias}`, "", true),
      piece(" x ("),
      piece(exponent ? 1 : 0, "exponent"),
      piece(" + "),
      piece(mantissa, "mantissa"),
      piece(`/${1 << fmt.mantissa_bits})`),
    ];
  }

  /** The formula of the format's kind with the numbers of a code; of a special, why it is one. */
  function formula(fmt, code) {
    const x = decode(fmt, code);
    if (fmt.kind === "fixed") {
      if (!fmt.mantissa_bits) return numberPieces(x);
      const divided = [piece(place(fmt, code), "mantissa"), piece(" / 2"), piece(fmt.mantissa_bits, "", true)];
      return [...divided, piece(" = "), ...numberPieces(x)];
    }
    if (!Number.isFinite(x)) return [piece(special(fmt, code))];
    const about = exact(x).includes("^") ? [piece(`, about ${general(x, 6)}`)] : [];
    return [...product(fmt, code), piece(" = "), ...numberPieces(x), ...about];
  }

  /** Pieces as one line of text: 2^(13 - 7), 2^-9. */
  function line(pieces) {
    let text = "",
      raised = "";
    const close = () => {
      if (raised) text += raised.includes(" ") ? `^(${raised})` : `^${raised}`;
      raised = "";
    };
    for (const part of pieces) {
      if (part.raised) raised += part.text;
      else {
        close();
        text += part.text;
      }
    }
    close();
    return text;
  }

  /** Rows [name, text] about the fields of a code. */
  function parts(fmt, code) {
    const bits = binary(code, fmt.bits);
    if (fmt.kind === "exponent") return [["bits", `${bits}  exponent`]];
    if (fmt.kind === "fixed") {
      const cut = fmt.bits - fmt.mantissa_bits;
      const point = fmt.mantissa_bits ? `${bits.slice(0, cut)}.${bits.slice(cut)}` : bits;
      return [
        ["bits", `${point}  two's complement`],
        ["integer", String(place(fmt, code))],
      ];
    }
    let from = 0;
    const listed = fields(fmt);
    const shown = listed.map(({ width }) => bits.slice(from, (from += width)));
    const rows = [["bits", `${shown.join(" ")}  ${listed.map((field) => field.name).join(", ")}`]];
    if (!Number.isFinite(decode(fmt, code))) return rows;
    const { exponent, mantissa } = split(fmt, code),
      least = Math.max(exponent, 1),
      steps = 1 << fmt.mantissa_bits;
    const power = `${least} - bias ${fmt.bias} = ${least - fmt.bias}`,
      leading = exponent ? 1 : 0;
    rows.push(["exponent", exponent ? power : `0, subnormal: ${power}`]);
    rows.push(["mantissa", `${leading} + ${mantissa}/${steps} = ${exact(leading + mantissa / steps)}`]);
    return rows;
  }

  function neighbourText(fmt, code) {
    const named = (near, side) =>
      near === null ? `none ${side}` : `${exact(decode(fmt, near))} (${hex(fmt, near)}) ${side}`;
    const [below, above] = neighbours(fmt, code);
    return `${named(below, "below")}, ${named(above, "above")}`;
  }

  function intervalText(fmt, code) {
    const { low, high, lowClosed, highClosed } = interval(fmt, code);
    const text = `${lowClosed ? "[" : "("}${exact(low)}, ${exact(high)}${highClosed ? "]" : ")"} by nearest even`;
    return text + (fmt.min >= 0 && neighbours(fmt, code)[0] === null ? "; negative numbers become NaN" : "");
  }

  /** Why no number is encoded as this special code, or which one is. */
  function never(fmt, code) {
    if (!Number.isNaN(decode(fmt, code))) return `never gives it: infinity saturates to ${exact(fmt.max)}`;
    return code === fmt.nan_code ? "gives it for NaN" : `never gives it: NaN becomes ${hex(fmt, fmt.nan_code)}`;
  }

  /** Why a number became what it became, where rounding alone does not say. */
  function policy(fmt, x) {
    if (Number.isNaN(x))
      return fmt.nan_code === null ? "no NaN in this format: it becomes +max" : "NaN becomes the format's NaN";
    if (fmt.min >= 0 && x < 0) return "no negative numbers in this format: they become NaN";
    if (fmt.kind === "exponent" && x < fmt.min)
      return `no zero in this format, and nothing below ${exact(fmt.min)}: it becomes that`;
    if (x < fmt.min || x > fmt.max) return `beyond the range ${exact(fmt.min)} to ${exact(fmt.max)}: it saturates`;
    return "";
  }

  /** What a number becomes under every rounding, as `fourbit show FORMAT --value` prints it: rows of texts. */
  function roundingRows(fmt, x, names) {
    return formats.roundings(fmt, x, names).map(([name, code, chance]) => {
      const error = decode(fmt, code) - x,
        plus = error > 0 || Object.is(error, 0) || Number.isNaN(error) ? "+" : "";
      const draws = chance === 1 ? "" : `, ${(100 * chance).toFixed(2)}% of draws`;
      return [name + draws, hex(fmt, code), exact(decode(fmt, code)), plus + general(error, 4)];
    });
  }

  /** Everything about a code, as `fourbit show FORMAT CODE` prints it. */
  function text(fmt, code) {
    const rows = [...parts(fmt, code), ["value", line(formula(fmt, code))]];
    if (Number.isFinite(decode(fmt, code)))
      rows.push(["neighbours", neighbourText(fmt, code)], ["rounds here", intervalText(fmt, code)]);
    else rows.push(["encode", never(fmt, code)]);
    const title = `${fmt.name} ${hex(fmt, code)} = ${exact(decode(fmt, code))}`;
    return [title, ...rows.map(([name, words]) => `  ${name.padEnd(11)}  ${words}`)].join("\n");
  }

  return { hex, binary, fields, formula, numberPieces, line, parts, intervalText, never, policy, roundingRows, text };
})();
