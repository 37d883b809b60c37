"""The FP32 number nearest to a rational one, by integers: the oracle of exact sums."""

from fractions import Fraction


def nearest(x: Fraction | int) -> float:
    """Ties go to even; beyond FP32's largest number nothing is promised."""
    x = Fraction(x)
    if x == 0:
        return 0.0
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    ulp = Fraction(2) ** (max(exponent, -126) - 23)
    return float(round(x / ulp) * ulp)
