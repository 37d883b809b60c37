"use strict";
/* Element formats: codes, values, neighbours. A format is what numerics.formats describes, under the same names
   (kind, bits, exponent_bits, mantissa_bits, bias, specials, signed, ...); formats of up to 8 bits bring a table of
   their values too. Encoding is numerics.encode to nearest, ties to even, of a double; it saturates. `roundings` has the other modes.

   Places count values from zero (from the least value in an exponent format), so neighbours differ by one. */

const formats = (() => {
  const { power2, exponentOf, roundHalfEven, isNegative } = numbers;

  /** The generated data as the other functions take it: in its tables NaN and infinities stand as words. */
  function read(text) {
    const data = JSON.parse(text);
    for (const fmt of Object.values(data.formats)) if (fmt.table) fmt.table = fmt.table.map(Number);
    return data;
  }

  function signBits(fmt) {
    return fmt.kind === "float" && fmt.signed ? 1 : 0;
  }

  /** Sign, exponent and mantissa fields of a float format's code. */
  function split(fmt, code) {
    const steps = 1 << fmt.mantissa_bits,
      magnitude = code % (1 << (fmt.bits - signBits(fmt)));
    const exponent = Math.floor(magnitude / steps),
      mantissa = magnitude % steps;
    return { sign: code === magnitude ? 0 : 1, magnitude, exponent, mantissa };
  }

  /** Value of a code by the formula of its kind. */
  function value(fmt, code) {
    if (fmt.kind === "fixed") return place(fmt, code) * power2(-fmt.mantissa_bits);
    if (fmt.kind === "exponent") return code === fmt.nan_code ? NaN : power2(code - fmt.bias);
    const { sign, magnitude, exponent, mantissa } = split(fmt, code),
      factor = sign ? -1 : 1;
    if (magnitude > fmt.max_code)
      return fmt.specials === "ieee" && magnitude === fmt.max_code + 1 ? factor * Infinity : NaN;
    const significand = mantissa + (exponent ? 1 << fmt.mantissa_bits : 0);
    return factor * significand * power2(Math.max(exponent, 1) - fmt.bias - fmt.mantissa_bits);
  }

  /** Value of a code: of the table, where there is one. */
  function decode(fmt, code) {
    return fmt.table ? fmt.table[code] : value(fmt, code);
  }

  /** Code of a magnitude between 0 (an exponent format: its least value) and the largest one. */
  function encodeMagnitude(fmt, a) {
    const m = fmt.mantissa_bits;
    if (fmt.kind === "fixed") return roundHalfEven(a * power2(m));
    const exponent = Math.max(exponentOf(a), fmt.min_exponent);
    const quanta = roundHalfEven(a * power2(m - exponent)); // a carry is the next exponent's first code
    return quanta + (exponent - fmt.min_exponent) * (1 << m) - (fmt.kind === "exponent" ? 1 : 0);
  }

  /** Code of a double. */
  function encode(fmt, x) {
    if (Number.isNaN(x)) return fmt.nan_code ?? fmt.max_code;
    const unsigned = fmt.kind === "exponent" || !fmt.signed;
    if (unsigned && x < 0) return fmt.nan_code ?? 0;
    const negative = !unsigned && isNegative(x);
    const largest = negative && fmt.kind === "fixed" ? -fmt.min : fmt.max; // two's complement goes one step further
    const least = fmt.kind === "exponent" ? fmt.min : 0;
    const magnitude = encodeMagnitude(fmt, Math.max(Math.min(Math.abs(x), largest), least));
    if (!negative) return magnitude;
    const codes = 2 ** fmt.bits;
    return fmt.kind === "fixed" ? (codes - magnitude) % codes : magnitude + codes / 2;
  }

  /** Place of a finite code on the number line. */
  function place(fmt, code) {
    const codes = 2 ** fmt.bits;
    if (fmt.kind === "fixed") return code >= codes / 2 ? code - codes : code;
    return signBits(fmt) && code >= codes / 2 ? codes / 2 - code : code;
  }

  /** Least and largest place. */
  function ends(fmt) {
    const signed = fmt.kind === "fixed" || signBits(fmt);
    return [signed ? -fmt.max_code - (fmt.kind === "fixed" ? 1 : 0) : 0, fmt.max_code];
  }

  /** Code at a place; null beyond the largest finite values. */
  function at(fmt, where) {
    const [least, most] = ends(fmt);
    if (where < least || where > most) return null;
    if (where >= 0) return where;
    return fmt.kind === "fixed" ? where + 2 ** fmt.bits : -where + 2 ** (fmt.bits - 1);
  }

  /** Codes of the next values [below, above] a finite code, null where there is none. */
  function neighbours(fmt, code) {
    const here = place(fmt, code) + 0;
    return [at(fmt, here - 1), at(fmt, here + 1)];
  }

  /** The numbers that round to a finite code: {low, high} and whether each end belongs to it. */
  function interval(fmt, code) {
    const middle = decode(fmt, code),
      [below, above] = neighbours(fmt, code);
    let low = below === null ? (fmt.min >= 0 ? 0 : -Infinity) : (decode(fmt, below) + middle) / 2;
    let high = above === null ? Infinity : (decode(fmt, above) + middle) / 2;
    if (middle === 0 && signBits(fmt)) [low, high] = code === 0 ? [middle, high] : [low, middle]; // each zero its side
    return { low, high, lowClosed: encode(fmt, low) === code, highClosed: encode(fmt, high) === code };
  }

  /** Codes of the values below and above a double that lies between two values of the format; null elsewhere. */
  function around(fmt, x) {
    const code = encode(fmt, x),
      value = decode(fmt, code);
    if (!Number.isFinite(x) || !Number.isFinite(value) || value === x || x < fmt.min || x > fmt.max) return null;
    const [below, above] = neighbours(fmt, code);
    const [low, high] = value < x ? [code, above] : [below, code];
    return signBits(fmt) && x < 0 && decode(fmt, high) === 0 ? [low, 2 ** (fmt.bits - 1)] : [low, high]; // to -0
  }

  /** What a double becomes under every rounding, in the order of numerics.Rounding: [[name, code, probability], ..].
      Stochastic rounding has 16 random bits: the value farther from zero gets floor(2^16 share) of 2^16 draws. */
  function roundings(fmt, x, names) {
    const even = encode(fmt, x),
      pair = around(fmt, x);
    if (pair === null) return names.map((name) => [name, even, 1]);
    const [low, high] = pair,
      [inner, outer] = x < 0 ? [high, low] : [low, high];
    const [a, b] = [inner, outer].map((code) => Math.abs(decode(fmt, code)));
    const share = Math.floor(((Math.abs(x) - a) / (b - a)) * 65536) / 65536;
    const away = (Math.abs(x) - a) * 2 === b - a ? outer : even;
    const chances = [[outer, share], [inner, 1 - share]].filter(([, chance]) => chance > 0); // prettier-ignore
    if (chances.length === 2 && chances[0][1] < chances[1][1]) chances.reverse();
    const results = [[[even, 1]], [[inner, 1]], [[high, 1]], [[low, 1]], [[away, 1]], chances];
    return names.flatMap((name, i) => results[i].map(([code, chance]) => [name, code, chance]));
  }

  const WRITTEN = /^(?:(U?)E(\d+)M(\d+)(FNU|FN)?|INT(\d+)|S(\d+)F(\d+))$/;

  /** The format that a name writes down, as numerics.format_named reads it; null for one that it refuses. */
  function named(name, known) {
    const upper = name.toUpperCase().trim(),
      plain = upper === "E8M0FNU" ? "E8M0" : upper.replace(/FN$/, "");
    if (known[upper]) return known[upper];
    if (known[plain] && known[plain].specials !== "ieee") return known[plain];
    const found = WRITTEN.exec(upper);
    if (!found || (found[4] === "FNU" && (found[1] || found[3] !== "0"))) return null;
    const [e, m, integers, whole, fraction] = [2, 3, 5, 6, 7].map((i) => Number(found[i] ?? 0));
    let fmt = { name: upper, exponent_bits: e, mantissa_bits: m, bias: 2 ** Math.max(e - 1, 0) - 1, signed: !found[1] };
    if (found[2] === undefined)
      fmt = { ...fmt, kind: "fixed", bits: integers + whole + fraction, mantissa_bits: fraction, bias: 0 };
    else if (found[4] === "FNU") fmt = { ...fmt, kind: "exponent", bits: e, signed: true };
    else fmt = { ...fmt, kind: "float", bits: signBits({ ...fmt, kind: "float" }) + e + m };
    const ieee = fmt.kind === "float" && found[4] === undefined && e > 1 && m > 0;
    const hasNaN = fmt.kind === "exponent" || (fmt.kind === "float" && fmt.bits >= 8);
    fmt.specials = ieee ? "ieee" : hasNaN ? "nan" : "none";
    return fits(fmt) ? derived(fmt) : null;
  }

  /** Whether `Format` takes it: widths, and values that float32 holds. */
  function fits({ kind, bits, exponent_bits: e, mantissa_bits: m, bias, specials }) {
    if (bits < 2 || bits > 24) return false;
    if (kind === "fixed") return true;
    if (kind === "exponent") return bits <= 8 && 2 ** bits - 2 - bias <= 127;
    if (e < 1 || e > 8 || m > 23) return false;
    return 1 - bias - m >= -149 && 2 ** e - 1 - bias - (specials === "ieee" ? 1 : 0) <= 127;
  }

  /** A format with what follows from its fields, under the names of numerics. */
  function derived(fmt) {
    const top = 2 ** (fmt.bits - signBits(fmt)) - 1,
      steps = 2 ** fmt.mantissa_bits;
    const cut = { none: 0, nan: 1, ieee: steps }[fmt.specials];
    const all = {
      ...fmt,
      min_exponent: (fmt.kind === "float" ? 1 : 0) - fmt.bias,
      max_code: fmt.kind === "fixed" ? 2 ** (fmt.bits - 1) - 1 : top - cut,
      nan_code: { none: null, nan: top, ieee: top - steps / 2 + 1 }[fmt.specials],
    };
    all.max = value(all, all.max_code);
    all.min = fmt.kind === "fixed" ? value(all, 2 ** (fmt.bits - 1)) : signBits(fmt) ? -all.max : value(all, 0);
    all.min_subnormal = power2(all.min_exponent - fmt.mantissa_bits);
    all.min_normal = fmt.kind === "fixed" ? all.min_subnormal : power2(all.min_exponent);
    return all;
  }

  return { read, split, value, decode, encode, place, ends, at, neighbours, interval, signBits, roundings, named };
})();
