"""`fourbit validate --ops`: kernels that are right for contiguous arguments, under torch's usual settings, once.

Contract: a function that depends on how its arguments lie in memory, on their dtype, on torch's settings or on earlier
calls fails, and the line says by which way it was called; so does one that changes what is not its own. Oracle: copies
of the seam (`seam_copies`) with one function before or behind which something is done wrong.
"""

from pathlib import Path

import pytest
import torch
from seam_copies import failed, run, written
from seam_copies import two_threads as two_threads

from hw import ways
from hw.calls import SETTINGS
from hw.compare import bits_of

PRELUDE = '''
import functools, inspect
import torch
from numerics.blocks import BlockTensor

def linear(x):
    """What a kernel reads that takes memory as it lies, from the tensor's first element on."""
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    flat = torch.zeros(x.numel(), dtype=x.dtype)
    flat[: min(x.numel(), room)] = x.as_strided((min(x.numel(), room),), (1,), x.storage_offset())
    return flat.view(x.shape)

def strides(x, stride, offset=None):
    """The same through a view with strides of the kernel's own, zeros beyond the end of memory."""
    offset = x.storage_offset() if offset is None else offset
    need = offset + sum((n - 1) * s for n, s in zip(x.shape, stride)) + 1
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return torch.cat([memory, memory.new_zeros(max(need - len(memory), 0))]).as_strided(x.shape, stride, offset)

def around(name, true=None):
    def wrap(wrong):
        function = globals()[name]
        @functools.wraps(function)
        def run(*args, **kwargs):
            return wrong(function, *args, **kwargs)
        run.__signature__ = inspect.signature(function)
        globals()[name] = run
    return wrap
'''


def kernel(folder: Path, function: str, body: str, before: str = "") -> Path:
    """A copy of the seam in which `body` stands for a function, which it calls as `f` with its arguments `a`, `k`."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return written(folder, more=f"{PRELUDE}\n{before}\n@around({function!r})\ndef _(f, *a, **k):\n{lines}\n")


FIRST = "return f({}(a[0]), *a[1:], **k)"
WRONG = {
    # layouts
    "reads linearly": ("quantize_tokens", FIRST.format("linear"), "", "layouts", "strided"),
    "no storage offset": ("glu_backward", "return f(strides(a[0], a[0].stride(), 0), a[1])", "", "layouts", "strided"),
    "columns lie side by side": (
        "glu_backward",
        "return f(a[0], strides(a[1], (a[1].stride(0), 1)))",
        "",
        "layouts",
        "strided",
    ),
    "rows lie side by side": (
        "router_gradient",
        "return f(a[0], strides(a[1], (a[1].shape[1] * a[1].stride(1), a[1].stride(1))), *a[2:])",
        "",
        "layouts",
        "strided",
    ),
    "scales linear": (
        "requantize_transpose",
        "q = a[0]\nreturn f(q.derived(scales=linear(q.scales)) if isinstance(q, BlockTensor) else q, *a[1:], **k)",
        "",
        "layouts",
        "strided",
    ),
    "index linear": ("aggregate", "return f(a[0], linear(a[1]), *a[2:])", "", "layouts", "strided"),
    "factors linear": ("grad_to_wire", "return f(*a[:2], linear(a[2]), *a[3:])", "", "layouts", "strided"),
    "only rows may be apart": (
        "quantize_tokens",
        "x = a[0]\nreturn f(x if x.stride(-1) == 1 else linear(x), *a[1:], **k)",
        "",
        "layouts",
        "strided",
    ),
    "rows start at whole vectors": (
        "glu_backward",
        "x = a[1]\nreturn f(a[0], strides(x, (x.stride(0) // 16 * 16, 1)) if x.stride(1) == 1 else x)",
        "",
        "layouts",
        "rows apart",
    ),
    "rows oddly apart start at whole vectors": (
        "glu_backward",
        "x = a[1]\nfar = x.stride(0) - x.shape[1] < 16\n"
        "return f(a[0], strides(x, (x.stride(0) // 8 * 8, 1)) if x.stride(1) == 1 and far else x)",
        "",
        "layouts",
        "rows oddly apart",
    ),
    "wants a view": ("glu_backward", "return f(a[0], a[1].view(-1).view(a[1].shape))", "", "layouts", "strided"),
    "stride 0 is contiguous": (
        "glu_backward",
        "return f(a[0], linear(a[1]) if 0 in a[1].stride() else a[1])",
        "",
        "layouts",
        "equal rows expanded",
    ),
    "writes beyond its rows": (
        "glu_backward",
        "m = torch.empty(0, dtype=a[0].dtype).set_(a[0].untyped_storage())\nm[-1:] = 0\nreturn f(*a)",
        "",
        "layouts",
        "writes outside of its argument dh",
    ),
    # settings
    "default dtype": (
        "glu_backward",
        "return f((a[0] * torch.ones(1)[0:1]).to(torch.get_default_dtype()).to(torch.float32), a[1])",
        "",
        "settings",
        "default dtype bfloat16",
    ),
    "memory of the default device": (
        "glu_backward",
        "return f(torch.empty(a[0].shape, dtype=a[0].dtype).copy_(a[0]), a[1])",
        "",
        "settings",
        "another default device",
    ),
    "a constant of the default dtype": (
        "glu_backward",
        "return f(a[0] * torch.ones(1), a[1])",
        "",
        "settings",
        "default dtype float64, small, seed 0: TypeError: dh has dtype torch.float64",
    ),
    "wants numpy": ("glu_backward", "a[0].numpy()\nreturn f(*a)", "", "settings", "gradients wanted"),
    "counts versions": ("glu_backward", "a[0]._version\nreturn f(*a)", "", "settings", "inference mode"),
    "memory is what it was": (
        "glu_backward",
        "r = f(*a)\nreturn torch.where(torch.empty(8, dtype=torch.float64, device=r.device).isnan().all(), 1, r)",
        "",
        "settings",
        "memory filled",
    ),
    "flushes": ("glu_backward", "return f(a[0] * 0.5 * 2.0, a[1])", "", "settings", "subnormals flushed"),
    # sizes
    "rows of one tile": (
        "glu_backward",
        "r = f(*a)\nr[:, 512:] = r[:, 512:] if r.shape[1] <= 1024 else 0\nreturn r",
        "",
        "sizes",
        "wide experts",
    ),
    "eight experts of a token": (
        "aggregate",
        "return f(a[0], a[1][:, :8], a[2] if a[2] is None else a[2][:, :8], a[3])",
        "",
        "sizes",
        "many experts",
    ),
    "experts of one warp": (
        "grad_products",
        "dx, dw = f(*a, **k)\nreturn dx, dw.index_fill(0, torch.arange(32, max(len(dw), 32)), 0)",
        "",
        "sizes",
        "many experts",
    ),
    # later calls
    "one buffer": (
        "glu_backward",
        "r = f(*a)\nb = BUFFERS.setdefault(r.shape, torch.empty_like(r))\nreturn b.copy_(r)",
        "BUFFERS = {}",
        "later calls",
        "an earlier result after a later call",
    ),
    "codes in one buffer": (
        "requantize_transpose",
        "r = f(*a, **k)\nif not isinstance(r, BlockTensor):\n    return r\n"
        "b = BUFFERS.setdefault((r.shape, r.axis), torch.empty_like(r.codes))\n"
        "return r.derived(codes=b.copy_(r.codes))",
        "BUFFERS = {}",
        "later calls",
        "an earlier result after a later call",
    ),
    "remembers addresses": (
        "quantize_tokens",
        "key = a[0].data_ptr(), a[0].shape, str(a[1:]), str(k)\n"
        "return SEEN.setdefault(key, f(*a, **k)) if a[0].numel() else f(*a, **k)",
        "SEEN = {}",
        "later calls",
        "other values in the same memory",
    ),
    "accumulates": (
        "router_gradient",
        "r = f(*a)\nb = SUMS.setdefault(r.shape, torch.zeros_like(r))\nreturn b.add_(r).clone()",
        "SUMS = {}",
        "later calls",
        "other values in the same memory",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_depends_on_the_way_it_is_called_fails(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its kind of ways, with the way in words; and with plain arguments, once, it passes."""
    function, body, before, kind, said = WRONG[name]
    path = kernel(tmp_path, function, body, before)
    case = f"{function} NVFP4" if function != "glu_backward" else function
    status, lines = run(capsys, path, "--only", f"{case}, {kind}")
    assert status == 1 and said in failed(lines)[0], lines


@pytest.mark.parametrize(
    ("function", "body", "case"),
    [
        ("quantize_tokens", "return f(a[0].to(torch.bfloat16), *a[1:], **k)", "quantize_tokens NVFP4 float32, normal"),
        ("grad_to_wire", "return f(a[0].view(torch.float32), *a[1:], **k)", "grad_to_wire NVFP4 bfloat16, normal"),
        ("router_gradient", "return f(a[0].to(torch.bfloat16), *a[1:])", "router_gradient NVFP4 float32, normal"),
    ],
)
def test_a_kernel_for_one_dtype_alone_fails(
    function: str, body: str, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (name, dtype) = kernel(tmp_path, function, body), case.partition(",")[0].rsplit(" ", 1)
    assert run(capsys, path, "--only", case)[0] == 1
    status, lines = run(capsys, path, "--only", f"{name}, normal")
    assert status == 0 and f" {dtype}" not in lines[1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("torch.set_default_dtype(torch.float64)\nreturn f(*a)", "default dtype"),
        ("torch.set_float32_matmul_precision('medium')\nreturn f(*a)", "precision of FP32 products"),
        ("r = f(*a)\ntorch.set_default_device('meta')\nreturn r", "default device"),
        ("torch.set_autocast_enabled('cpu', True)\nreturn f(*a)", "autocast"),
        (
            "m = torch.backends.cuda.matmul\nm.allow_bf16_reduced_precision_reduction = False\nreturn f(*a)",
            "precision of sums in products",
        ),
        ("torch.set_flush_denormal(True)\nreturn f(*a)", "flushing of subnormals"),
        ("torch.set_num_threads(1)\nreturn f(*a)", "number of threads"),
        ("torch.set_grad_enabled(False)\nreturn f(*a)", "gradient mode"),
        ("torch.manual_seed(0)\nreturn f(*a)", "seed of random numbers"),
        ("torch.use_deterministic_algorithms(True)\nreturn f(*a)", "choice of deterministic algorithms"),
    ],
)
def test_a_kernel_that_changes_a_setting_of_torch_fails(
    body: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the setting is put back."""
    torch.manual_seed(11)
    before = [get() for get, _ in SETTINGS.values()]
    status, lines = run(capsys, kernel(tmp_path, "glu_backward", body), "--only", "glu_backward, normal")
    assert status == 1 and f"ragged, seed 0: glu_backward changes torch's {said}" in lines[1]
    assert [get() for get, _ in SETTINGS.values()] == before


@pytest.mark.parametrize(
    ("function", "body", "said"),
    [
        ("aggregate", "r = f(*a)\na[3].signs is None or a[3].signs.neg_()\nreturn r", "argument wire"),
        ("requantize_transpose", "r = f(*a, **k)\na[0].scales.add_(1)\nreturn r", "argument q"),
        ("glu_backward", "r = f(*a)\na[1].t_()\nreturn r", "argument gate_up"),
        ("router_gradient", "a[2].clamp_(max=0)\nreturn f(*a)", "argument slots"),
    ],
)
def test_a_kernel_that_changes_an_argument_fails(
    function: str, body: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signs, scales, strides and indices are arguments too; what was changed is put back for the other cases."""
    case = f"{function} NVFP4, normal" if function != "glu_backward" else f"{function}, normal"
    status, lines = run(capsys, kernel(tmp_path, function, body), "--only", case, "aggregate BF16, normal")
    assert status == 1 and f"{function} changes its {said}" in failed(lines)[0], lines
    assert len(failed(lines)) == 1 + (function == "aggregate" and "BF16" in lines[-2] and "changes" in lines[-2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("way", ways.LAYOUTS, ids=lambda way: way.name)
def test_layouts_keep_the_values(way: ways.Way, dtype: torch.dtype) -> None:
    for shape in ((5, 7), (3, 5, 7), (0, 7), (5, 0), (1, 1), (4,), (1, 7), ()):
        x = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
        assert way.passed is not None
        found = way.passed(x)
        assert found.shape == x.shape and found.dtype == dtype and torch.equal(bits_of(found), bits_of(x))


def test_layouts_are_what_they_say() -> None:
    x = torch.arange(30.0).view(5, 6)
    assert ways.strided(x).stride() == (26, 2) and ways.strided(x).storage_offset() == 14
    assert ways.rows_apart(x).stride() == (30, 1) and ways.rows_apart(x).storage_offset() == 8
    assert ways.rows_oddly_apart(x).stride() == (15, 1) and ways.rows_oddly_apart(x).storage_offset() == 0
    assert ways.transposed(x).stride() == (1, 5) and ways.transposed(torch.ones(2, 3, 4)).stride() == (12, 1, 3)
    assert ways.matrices_apart(torch.ones(2, 3, 4)).stride() == (24, 4, 1)
    assert ways.shifted(x).storage_offset() == 1 and ways.shifted(x).is_contiguous()
    assert ways.expanded(x).stride() == (6, 1) and ways.expanded(torch.ones(5, 6)).stride() == (0, 0)
    assert ways.expanded(x[:1].repeat(5, 1)).stride() == (0, 1)
    assert ways.expanded(torch.tensor([[0.0], [-0.0]])).stride() == (1, 1)
    sliding = torch.arange(10.0).unfold(0, 6, 1).clone()
    assert ways.overlapping(sliding).stride() == (1, 1) and ways.overlapping(x) is x
    around = torch.empty(0).set_(ways.strided(x).untyped_storage())
    assert int(around.isnan().sum()) == around.numel() - x.numel()


POOL = """
POOL, USED = torch.empty(1 << 24, dtype=torch.uint8), [0]

def own(t):
    if isinstance(t, BlockTensor):
        return t.derived(codes=own(t.codes), scales=own(t.scales), outer=t.outer)
    start = USED[0]
    USED[0] += -(-t.numel() * t.element_size() // 64) * 64
    assert USED[0] <= len(POOL)
    return POOL[start : start + t.numel() * t.element_size()].view(t.dtype).view(t.shape).copy_(t)
"""


@pytest.mark.parametrize(
    ("function", "body", "before"),
    [
        ("requantize_transpose", "return own(f(*a, **k))", POOL),
        ("glu_backward", "return own(f(*a))", POOL),
        ("glu_backward", "return f(*a).mT.contiguous().mT", ""),
        ("glu_backward", "r = f(*a)\nb = r.new_ones(len(r), r.shape[1] + 7)[:, 3:-4]\nreturn b.copy_(r)", ""),
        ("glu_backward", "r = f(*a)\nreturn r.clone().requires_grad_() if torch.is_grad_enabled() else r", ""),
    ],
)
def test_unusual_memory_of_results_passes(
    function: str, body: str, before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of one pool that is filled on, columns first, columns of wider rows, results that want gradients."""
    case = f"{function} NVFP4" if function != "glu_backward" else function
    only = [f"{case}, {data}" for data in ("normal", "later calls", "layouts")]
    status, lines = run(capsys, kernel(tmp_path, function, body, before), "--only", *only)
    assert status == 0, failed(lines)


@pytest.mark.parametrize(
    ("case", "body"),
    [
        ("aggregate NVFP4, NaN, Inf", "return f(*a[:2], a[2] if a[2] is None else a[2].nan_to_num(0.0), a[3])"),
        ("aggregate NVFP4, holes", "return f(a[0], a[1], a[2] if a[2] is None else a[2] + 1e-30, a[3])"),
        ("grad_to_wire NVFP4, tails", "return f(*a[:2], a[2].clamp(-5, 5), *a[3:])"),
        ("router_gradient BF16, NaN, Inf", "return f(a[0], a[1].nan_to_num(0.0), *a[2:])"),
        ("requantize_transpose NVFP4 plain, NaN, Inf", "return f(*a[:4], *(r.nan_to_num(0.0) for r in a[4:5]), **k)"),
        (
            "gate_up_glu NVFP4, NaN, Inf",
            "w = a[1]\nreturn f(a[0], w.derived(scales=w.scales.clamp(max=0x7E)), *a[2:], **k)",
        ),
        (
            "grad_products MXFP8, NaN, Inf",
            "w = a[2]\nreturn f(*a[:2], w.derived(scales=w.scales.clamp(max=0xFE)), *a[3:], **k)",
        ),
        (
            "gate_up_glu MXFP8, NaN, Inf",
            "x = a[0]\nnan = (x.codes & 0x7F == 0x7F) & (x.scales_per_value() != 255)\n"
            "return f(x.derived(codes=torch.where(nan, x.codes - 1, x.codes)), *a[1:], **k)",
        ),
        (
            "quantize_tokens NVFP4 weight, normal",
            "return f(a[0].flatten(0, -3) if a[0].ndim > 3 else a[0], *a[1:], **k)",
        ),
    ],
)
def test_a_kernel_that_fails_with_other_arguments_than_the_first_is_found(
    case: str, body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN, zeros and large numbers in weights, factors, matrices and codes; more axes."""
    path = kernel(tmp_path, case.split()[0], body)
    status, lines = run(capsys, path, "--only", case)
    assert status == 1 and "Error" not in failed(lines)[0], lines
