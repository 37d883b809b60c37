"use strict";
/* Element formats: codes, values, neighbours. A format is what numerics.formats describes, under the same names
   (kind, bits, exponent_bits, mantissa_bits, bias, specials, signed, ...); formats of up to 8 bits bring a table of
   their values too. Encoding is numerics.encode to nearest, ties to even, of a double; it saturates.

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

  return { read, split, value, decode, encode, place, ends, at, neighbours, interval, signBits };
})();
