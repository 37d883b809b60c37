"use strict";
/* Numbers as bits and as text. Nothing here knows of a format or of a page.

   Texts of numbers are those of `fourbit show`: `general` is Python's format(x, ".9g"), ties to even; `exact` rounds
   nothing. */

const numbers = (() => {
  const view = new DataView(new ArrayBuffer(8));

  /** 2^e, from its bits: engines may compute powers approximately. */
  function power2(e) {
    if (e < -1022) return e < -1074 ? 0 : power2(e + 100) * power2(-100);
    if (e > 1023) return Infinity;
    view.setUint32(0, (e + 1023) << 20);
    view.setUint32(4, 0);
    return view.getFloat64(0);
  }

  /** Exponent field of a double without its bias; -1023 for zero and subnormals, far below any format's. */
  function exponentOf(x) {
    view.setFloat64(0, x);
    return ((view.getUint32(0) >>> 20) & 0x7ff) - 1023;
  }

  /** The bits of a float32, as an unsigned integer. */
  function bits32(x) {
    view.setFloat32(0, x);
    return view.getUint32(0);
  }

  /** Nearest integer of a double in [0, 2^52), ties to even: from 2^52 on doubles are the integers. */
  function roundHalfEven(v) {
    return v + 2 ** 52 - 2 ** 52;
  }

  function isNegative(x) {
    return x < 0 || Object.is(x, -0);
  }

  /** A finite double other than zero as [odd, exponent], odd * 2^exponent, odd a BigInt. */
  function split(x) {
    view.setFloat64(0, x);
    const bits = view.getBigUint64(0);
    const field = Number((bits >> 52n) & 0x7ffn);
    let odd = bits & ((1n << 52n) - 1n);
    if (field) odd |= 1n << 52n;
    let exponent = Math.max(field, 1) - 1075;
    while (!(odd & 1n)) [odd, exponent] = [odd >> 1n, exponent + 1];
    return [x < 0 ? -odd : odd, exponent];
  }

  /** `x` with so many significant digits, as Python's format(x, ".<digits>g"). */
  function general(x, digits) {
    if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
    const sign = isNegative(x) ? "-" : "";
    if (x === 0) return sign + "0";
    // 61 digits tell a tie from its neighbours; toPrecision alone would round ties up
    const [head, tail] = Math.abs(x).toExponential(60).split("e");
    const all = head.replace(".", "");
    const rest = all.slice(digits),
      half = "5".padEnd(rest.length, "0");
    let kept = BigInt(all.slice(0, digits)),
      power = Number(tail);
    if (rest > half || (rest === half && kept & 1n)) kept += 1n;
    if (String(kept).length > digits) [kept, power] = [kept / 10n, power + 1];
    const text = String(kept);
    if (power < -4 || power >= digits) {
      const fraction = text.slice(1).replace(/0+$/, "");
      const size = String(Math.abs(power)).padStart(2, "0");
      return `${sign}${text[0]}${fraction && "." + fraction}e${power < 0 ? "-" : "+"}${size}`;
    }
    const padded = power < 0 ? "0".repeat(-power) + text : text;
    const whole = Math.max(power, 0) + 1,
      fraction = padded.slice(whole).replace(/0+$/, "");
    return sign + padded.slice(0, whole) + (fraction && "." + fraction);
  }

  /** Whether a decimal text without exponent is `x` and not a number near it. */
  function isDecimalOf(text, x) {
    if (x === 0) return true;
    const [whole, fraction = ""] = text.split(".");
    const [odd, exponent] = split(x);
    const left = odd * 10n ** BigInt(fraction.length),
      right = BigInt(whole + fraction);
    return exponent >= 0 ? left << BigInt(exponent) === right : left === right << BigInt(-exponent);
  }

  /** `x` without rounding: a decimal of up to 9 digits, else m x 2^e with m odd. */
  function exact(x) {
    if (Number.isNaN(x)) return "NaN";
    const short = general(x, 9);
    if (!Number.isFinite(x) || (!short.includes("e") && isDecimalOf(short, x))) return short;
    const [odd, exponent] = split(x);
    return (odd === 1n ? "" : odd === -1n ? "-" : `${odd} x `) + `2^${exponent}`;
  }

  /** The shortest text that `parse` reads as `x`. */
  function plain(x) {
    if (!Number.isFinite(x)) return general(x, 1);
    return Object.is(x, -0) ? "-0" : String(x).replace("e+", "e");
  }

  function fromHexadecimal(match) {
    const [, sign, whole, fraction = "", exponent = "0"] = match;
    let mantissa = Number(BigInt("0x0" + whole + fraction));
    // in two steps, the first one exact: one rounding where the result is subnormal
    const power = Math.max(-4000, Math.min(4000, Number(exponent))) - 4 * fraction.length;
    const first = Math.max(-900, Math.min(900, power));
    mantissa *= power2(first);
    return (sign === "-" ? -1 : 1) * mantissa * power2(power - first);
  }

  const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const HEXADECIMAL = /^([+-]?)0x(?=\.?[0-9a-f])([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?\d+))?$/i;
  const INFINITE = /^[+-]?inf(inity)?$/i;

  /** What a text says: {value, note} with a remark or "", or {error}, a sentence. */
  function parse(text) {
    const clean = text.trim().replaceAll("\u2212", "-");
    const sign = clean.startsWith("-") ? -1 : 1;
    if (/^[+-]?nan$/i.test(clean)) return { value: NaN, note: "" };
    if (INFINITE.test(clean)) return { value: sign * Infinity, note: "" };
    const hexadecimal = HEXADECIMAL.exec(clean);
    if (!hexadecimal && !DECIMAL.test(clean)) {
      const shown = clean.length > 40 ? clean.slice(0, 40) + "..." : clean;
      return { error: `${clean ? `"${shown}"` : "An empty text"} is no number: type 5.4, -1e-3, 0x1.8p-3, nan or inf` };
    }
    const value = hexadecimal ? fromHexadecimal(hexadecimal) : Number(clean);
    const note = Number.isFinite(value) ? "" : `${clean} is beyond float64: it is read as ${plain(value)}`;
    return { value, note };
  }

  return { power2, exponentOf, bits32, roundHalfEven, isNegative, split, general, exact, plain, parse };
})();
