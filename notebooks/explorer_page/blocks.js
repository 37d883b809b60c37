"use strict";
/* Sixteen values in a block format, bit for bit as numerics.quantize: every operation is one float32 operation, in the
   order of the rule in numerics.scales. A double holds the product of two float32 numbers, and their sum, difference
   and quotient closely enough, so Math.fround of it is the correctly rounded float32 result.

   The outer scale of a block is asked for as {kind: "auto"} (of the block's own largest magnitude), {kind: "amax",
   value} (of a tensor whose other blocks reach `value`) or {kind: "given", value}. The block scale likewise: {kind:
   "rule"}, or {kind: "given", value}, which is rounded to the scale's format and used by every rule as it is. */

const blocks = (() => {
  const f = Math.fround;
  const { encode, decode } = formats;
  const SIZE = 16;

  /** The values as numerics takes them: float32, finite numbers beyond it at its ends, 0 where one is missing. */
  function float32(values, data) {
    const top = data.float32_max;
    const kept = values.map((x) => f(Number.isFinite(x) ? Math.max(-top, Math.min(top, x)) : x));
    return [...kept, ...Array(SIZE - kept.length).fill(0)];
  }

  /** Outer scale and encode scale of a scope's largest magnitude: outer_scale of numerics.outer. */
  function outerScale(amax, outerMax, data) {
    if (amax === 0) return { outer: 1, encodeScale: 1 };
    const encodeScale = Math.min(f(outerMax / amax), data.float32_max);
    return { outer: Math.max(f(amax / outerMax), data.least_outer), encodeScale: encodeScale === 0 ? 1 : encodeScale };
  }

  function chosenOuter(amax, block, asked, data) {
    if (asked.kind === "given") {
      const outer = f(asked.value);
      return { outer, encodeScale: Math.min(f(1 / outer), data.float32_max) };
    }
    const other = asked.kind === "amax" ? Math.min(f(asked.value), data.float32_max) : 0;
    const scope = Math.max(amax, other);
    return { ...outerScale(scope, block.outer_max, data), scope };
  }

  /** Why an outer scale cannot be used, a sentence, or "". */
  function outerMistake(asked, data) {
    if (asked.kind === "auto") return "";
    const outer = f(asked.value);
    if (asked.kind === "given" && !(outer >= data.least_outer && Number.isFinite(outer)))
      return `An outer scale of ${numbers.plain(asked.value)} does not do: type a finite one of at least 2^-128`;
    if (asked.kind === "amax" && !(asked.value >= 0 && Number.isFinite(asked.value)))
      return `A largest magnitude of ${numbers.plain(asked.value)} does not do: type a finite number, 0 or more`;
    return "";
  }

  /** Why a block scale cannot be used, a sentence, or "". */
  function scaleMistake(asked) {
    if (asked.kind === "rule" || (asked.value > 0 && Number.isFinite(asked.value))) return "";
    return `A block scale of ${numbers.plain(asked.value)} does not do: type a finite number above 0`;
  }

  /** Element code of scaled[i] with the sign of x[i]: saturating, as Block.encode of numerics.rule. */
  function elements(x, scaled, element) {
    return x.map((value, i) => {
      const magnitude = Number.isNaN(scaled[i]) ? Infinity : Math.abs(scaled[i]);
      return encode(element, numbers.isNegative(value) ? -magnitude : magnitude);
    });
  }

  /** (element * scale) * outer, each product rounded to float32 and passed through `finite`. */
  function products(codes, scale, outer, element, finite = (x) => x) {
    return codes.map((code) => {
      const inner = finite(f(decode(element, code) * scale));
      return outer === null ? inner : finite(f(inner * outer));
    });
  }

  /** The default NVFP4 rule: s = e4m3(amax * (s_enc * (1/6))), elements times min(1 / (s * (1 / s_enc)), FLT_MAX). */
  function nvfp4(x, amax, { encodeScale }, block, data, given) {
    const { element, scale: scaleFormat } = block;
    const scaleCode = given ?? encode(scaleFormat, f(amax * f(encodeScale * block.reciprocal)));
    const step = f(decode(scaleFormat, scaleCode) * f(1 / encodeScale));
    const multiplier = Math.min(f(1 / step), data.float32_max);
    return {
      scaleCode,
      codes: elements(
        x,
        x.map((value) => f(value * multiplier)),
        element,
      ),
    };
  }

  /** s = e4m3(amax / (outer * largest)), elements x / (s * outer); signed zeros where that product is zero. */
  function divided(x, amax, outer, largest, block, given) {
    const scaleCode = given ?? encode(block.scale, f(amax / f(outer * largest)));
    const step = f(outer * decode(block.scale, scaleCode));
    const scaled = x.map((value) => f(value / (step === 0 ? Infinity : step)));
    return { scaleCode, codes: elements(x, scaled, block.element) };
  }

  /** Sum of squares in float32 as a binary tree over adjacent pairs. */
  function sumOfSquares(differences) {
    let sums = differences.map((d) => f(d * d));
    while (sums.length > 1) sums = sums.filter((_, i) => i % 2 === 0).map((_, i) => f(sums[2 * i] + sums[2 * i + 1]));
    return sums[0];
  }

  /** Both candidates of four-over-six; the last one wins only if its squared error is strictly smaller. */
  function fourOverSix(x, amax, { outer }, block, data, given) {
    if (given !== undefined) return divided(x, amax, outer, block.element.max, block, given);
    const candidates = block.targets.map((largest) => {
      const made = divided(x, amax, outer, largest, block);
      const decoded = products(made.codes, decode(block.scale, made.scaleCode), outer, block.element);
      return { ...made, largest, error: sumOfSquares(decoded.map((value, i) => f(value - x[i]))) };
    });
    const [six, four] = candidates;
    return { ...(four.error < six.error ? four : six), candidates };
  }

  /** s = the smallest power of two with s * max >= amax, max at least 2, by comparing mantissas; elements x / s. */
  function rceil(x, amax, _, block, data, given) {
    const limit = numbers.bits32(block.element.max),
      carry = 0x7fffff - (limit & 0x7fffff);
    const exponent = ((numbers.bits32(amax) + carry) >>> 23) + 127 - (limit >>> 23);
    const scaleCode = given ?? Math.max(0, Math.min(254, exponent));
    const inverse = numbers.power2(127 - scaleCode);
    const scaled = x.map((value) => f(value * inverse));
    return { scaleCode, codes: elements(x, scaled, block.element) };
  }

  const RULES = { nvfp4, four_over_six: fourOverSix, rceil };

  /** The block format `name` with its element and scale formats in the place of their names. */
  function described(name, data) {
    const block = data.blocks[name];
    return { ...block, name, element: data.formats[block.element], scale: data.formats[block.scale] };
  }

  /**
   * Quantize up to sixteen doubles. asked, scaleAsked: of the outer and of the block scale, see above.
   *
   * Returns x (float32), amax, outer (null where the format has none), scope (the largest magnitude that outer is made
   * of, unless given), scaleCode, scale, codes, values (dequantized), step (scale times outer), finite (whether the
   * block is), candidates (four-over-six: [6, 4] with their errors).
   */
  function quantize(values, name, asked, data, scaleAsked = { kind: "rule" }) {
    const block = described(name, data),
      x = float32(values, data);
    const finite = x.every(Number.isFinite);
    const amax = finite ? Math.max(...x.map(Math.abs)) : 0; // outer scales follow the finite blocks
    const factors = block.outer_max === null ? { outer: null } : chosenOuter(amax, block, asked, data);
    const given = scaleAsked.kind === "given" ? encode(block.scale, scaleAsked.value) : undefined;
    let made = RULES[block.rule](x, amax, factors, block, data, given);
    if (!finite) made = { scaleCode: block.scale.nan_code, codes: x.map(() => block.element.max_code) };
    const scale = decode(block.scale, made.scaleCode),
      { outer } = factors;
    const clamp = (v) => (Number.isNaN(v) ? v : Math.max(-data.float32_max, Math.min(data.float32_max, v)));
    const decoded = products(made.codes, scale, outer, block.element, clamp);
    const step = scale * (outer ?? 1);
    return { ...made, block, x, amax, finite, outer, scope: factors.scope, scale, step, values: decoded };
  }

  /** Errors of a quantized block, sums in float64 from the first value to the last; NaN where there is nothing. */
  function error({ x, values }) {
    let square = 0,
      energy = 0,
      largest = 0,
      vanished = 0;
    x.forEach((value, i) => {
      const difference = values[i] - value;
      square += difference * difference;
      energy += value * value;
      largest = Math.max(largest, Math.abs(difference));
      if (value !== 0 && values[i] === 0) vanished += 1;
    });
    const relative = energy === 0 ? NaN : square / energy;
    const decibels = relative === 0 ? Infinity : -10 * Math.log10(relative);
    return { mean: square / SIZE, relative, decibels, largest, vanished };
  }

  return { SIZE, float32, outerMistake, scaleMistake, described, quantize, error };
})();
