"""Closed forms of quantization error, from arXiv 2510.25602, section 3, and where integer and floating point cross.

    INT, E8M0 scale   QSNR = 4.78 + 6.02 b - 20 log10(rho kappa)
    INT, E4M3 scale   QSNR = 4.78 + 6.02 b - 20 log10(kappa) + 10 log10(g / (g - 1))
    FP,  E8M0 scale   QSNR = -10 log10( a w + B (rho kappa)^2 p )
    FP,  E4M3 scale   QSNR = -10 log10( a (w - kappa^2 / g) + B kappa^2 p )

b bits; kappa the crest factor of a block, its largest magnitude over its rms; rho how far the scale exceeds what the
largest magnitude needs, 1.5 in the paper; g values share a scale; w the share of energy in normal numbers, p the share
of values below them; with M mantissa bits, a = 1 / (24 * 2^2M) and B = 2^(2 (1 - bias - M)) / (12 max^2).

4.78 + 6.02 b is 10 log10(12) + 20 log10(2^(b-1)): uniform rounding errors, and 2^(b-1) steps to the largest value, of
which symmetric integers have one less; `fine` puts the steps that there are in its place. Under E4M3 the forms count
the largest value as exact. For normal values of unit rms, w and p follow from t = rho kappa 2^(1-bias) / max:

    p = 2 Phi(t) - 1,   w = 1 - p + 2 t phi(t)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import optimize, stats

import numerics as nm

from .format_error_cases import VARIANTS

RHO = 1.5


@dataclass(frozen=True)
class Pair:
    """An integer and a floating-point variant of one size; published: crest where the paper has them cross."""

    name: str
    integer: str
    floating: str
    published: float


PAIRS = (
    Pair("8-bit MX", "S2F6 (MXINT8)", "MXFP8", 7.55),
    Pair("6-bit MX", "MXINT6", "MXFP6 E2M3", 1.96),
    Pair("4-bit MX", "MXINT4", "MXFP4", 2.04),
    Pair("4-bit NV", "NVINT4", "NVFP4", 2.39),
)


def closed_form(
    fmt: nm.BlockFormat, crest: float, rho: float, normal: float = 1.0, subnormal: float = 0.0, fine: bool = False
) -> float:
    """QSNR, dB, of a block format by the forms above.

    Args:
        crest: kappa. rho: of E8M0 scales; those of E4M3 have 1. normal, subnormal: w and p of floating point.
        fine: for integers, count the steps that there are.

    Returns:
        QSNR; NaN where the form for E4M3 has no error left (crest near the square root of the block).
    """
    coded = fmt.scale is nm.E4M3
    rho = 1.0 if coded else rho
    element = fmt.element
    if element.kind == "fixed":
        steps = element.max * 2.0**element.mantissa_bits if fine else 2.0 ** (element.bits - 1)
        first = 10 * math.log10(fmt.block / (fmt.block - 1)) if coded else 0.0
        return 10 * math.log10(12) + 20 * math.log10(steps / (rho * crest)) + first
    m = element.mantissa_bits
    a, b = 1 / (24 * 4**m), 2.0 ** (2 * (1 - element.bias - m)) / (12 * element.max**2)
    energy = normal - crest**2 / fmt.block if coded else normal
    error = a * energy + b * (rho * crest) ** 2 * subnormal
    return -10 * math.log10(error) if error > 0 else math.nan


def of_normal(fmt: nm.BlockFormat, crest: float, fine: bool = False) -> float:
    """The closed form for a block of normal values whose crest is `crest`, with rho 1.5 for E8M0 scales."""
    rho = 1.0 if fmt.scale is nm.E4M3 else RHO
    t = rho * crest * fmt.element.min_normal / fmt.element.max
    below = 2 * float(stats.norm.cdf(t)) - 1
    return closed_form(fmt, crest, rho, 1 - below + 2 * t * float(stats.norm.pdf(t)), below, fine)


def ceiling(fmt: nm.Format) -> float:
    """QSNR, dB, of a floating-point element with all energy in normal numbers: 13.80 + 6.02 M."""
    return 10 * math.log10(24 * 4.0**fmt.mantissa_bits)


def crossover(difference: Callable[[float], float], low: float, high: float) -> float:
    """Where `difference` of QSNR, integer minus floating point, falls through zero; NaN if it does not."""
    if not difference(low) > 0 > difference(high):
        return math.nan
    return float(optimize.brentq(difference, low, high))


def closed_crossover(pair: Pair, fine: bool = False, credit: bool = True) -> float:
    """The crest where the closed forms for normal values cross.

    fine: count the integer's steps that there are. credit: with the term g / (g - 1) of integers with E4M3 scales.
    """
    integer, floating = (VARIANTS[name].fmt for name in (pair.integer, pair.floating))
    coded = integer.scale is nm.E4M3
    taken = 10 * math.log10(integer.block / (integer.block - 1)) if coded and not credit else 0.0
    high = 0.85 * math.sqrt(integer.block) if coded else 20.0  # up to where the form has an error
    return crossover(lambda k: of_normal(integer, k, fine) - taken - of_normal(floating, k), 1.01, high)
