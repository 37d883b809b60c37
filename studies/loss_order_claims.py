"""Which recipe should lose less than which, as sources claim it: data for `loss_order`.

Sources measured other models, most of them larger and with all linear layers quantized; here experts alone are. So a
claim's direction is tested, not its size.
"""

from dataclasses import dataclass

BASELINE = "bf16"
CHAIN = "the chain"


@dataclass(frozen=True)
class Claim:
    """`lower` ends at a lower loss than `higher`. `group`: what it belongs to. `source`: who says so, from what."""

    lower: str
    higher: str
    group: str
    source: str

    def __str__(self) -> str:
        return f"{self.lower} < {self.higher}"


_QUARTET = "Quartet II (arXiv 2601.22813), loss gaps of 30M to 200M models"
_ARTICLE = "Thinking Machines Lab, End-to-End 4-Bit Training (2026)"

CLAIMS = (
    Claim("bf16", "mxfp8", CHAIN, "arXiv 2506.08027: equal, or a little higher"),
    Claim("mxfp8", "nvfp4_46_forward", CHAIN, f"{_ARTICLE}: 4 bits lose against all-MXFP8"),
    Claim("nvfp4_46_forward", "nvfp4_forward", CHAIN, f"{_QUARTET}: .036 to .040 against .041 to .045"),
    Claim("nvfp4_forward", "nvfp4_2d_forward", CHAIN, f"{_QUARTET}: .041 to .045 against .047 to .051"),
    Claim("nvfp4_2d_forward", "nvfp4_all", CHAIN, f"{_QUARTET}: .047 to .051 against .054 to .058 of full NVFP4"),
    Claim("mxfp8", "fourbit", "the article", f"{_ARTICLE}: about 2 % of compute against all-MXFP8"),
    Claim("fourbit", "fourbit_2d_weights", "the article", f"{_ARTICLE}: 16x16 weights rejected"),
    Claim("fourbit", "fourbit_rn", "the article", f"{_ARTICLE}: saved operands must be right on average"),
    Claim("fourbit", "fourbit_no_46", "the article", f"{_ARTICLE}: four-over-six for activations"),
    Claim("fourbit", "fourbit_mxfp8_combine", "the article", f"{_ARTICLE}: MXFP8 combine lost accuracy"),
    Claim("fourbit", "fourbit_all_layers", "the article", f"{_ARTICLE}: the last sixth of the layers in MXFP8"),
    Claim(
        "fourbit", "fourbit_nvfp4_backward", "others", "Quartet II: stochastic NVFP4 requantization adds .012 to .015"
    ),
    Claim("quartet2", "tetrajet2", "others", f"{_QUARTET}: .042 to .043 against .052 to .057"),
    Claim("nvfp4_nvidia", "nvfp4_all", "others", "arXiv 2509.25149: each remedy needed, all layers in FP4 diverge"),
)
RECIPES = tuple(dict.fromkeys([BASELINE, *(name for claim in CLAIMS for name in (claim.lower, claim.higher))]))
