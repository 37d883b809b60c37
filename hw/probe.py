"""`fourbit probe`: how the device at hand adds products, route by route, and which row of `nm.ACCUMULATORS` does so.

    route   format  steps of K = 128  F   cut          output           c               e_zero  NaN       row
    tl.dot  E4M3    32 at a time      13  toward zero  13, toward zero  first, aligned  -       7fffffff  hopper_fp8

`probe_sums` says what is found and how; nothing is compared with the rows until all of it is there, so that a device
of another kind shows its own parameters and "no row". "-" is what a route, or the range of a format, cannot show. Of
libraries the second table tells how they cut long contractions, by M = N and K: which products are summed apart, and
how these sums are added. A library chooses by shape, so other shapes may be cut otherwise.

Exit status: 0 if something was probed, 2 if there is no such device, or no route.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from .device import DeviceAbsent, describe, resolve
from .probe_order import Order, find_order
from .probe_routes import FORMATS, ROUTES, Route, routes
from .probe_sums import Found, find, result
from .record import date, require_writable, versions, write_whole

K = 128  # of the first table
PLACES = 128  # products of a long contraction that are looked at, equally far apart


@dataclass(frozen=True)
class ProbeConfig:
    """Find how the device at hand adds products, and which row of the accumulators' table does the same."""

    device: str = "cuda"
    """What to probe: cuda, cuda:1 or cpu."""
    routes: tuple[str, ...] = ROUTES
    """Ways to a product: tl.dot, torch.matmul, torch._scaled_mm, 'torch._scaled_mm, fast'."""
    formats: tuple[str, ...] = tuple(FORMATS)
    """Formats of the operands: E4M3, E5M2, BF16, FP16, TF32, FP32."""
    sizes: tuple[int, ...] = (64, 1024)
    """M = N of the long contractions; multiples of 16."""
    lengths: tuple[int, ...] = (1024, 4096)
    """K of the long contractions; multiples of 128."""
    out: Path | None = None
    """JSON file for what was found."""

    def check(self) -> None:
        """Raises ValueError for what cannot be used."""
        for name, known in (("routes", ROUTES), ("formats", tuple(FORMATS))):
            chosen = getattr(self, name)
            if not chosen or not set(chosen) <= set(known):
                raise ValueError(f"{name}={chosen} cannot be used; name some of {', '.join(map(repr, known))}")
        for name, step, most in (("sizes", 16, 8192), ("lengths", 128, 1 << 15)):
            if any(n % step or not 0 < n <= most for n in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)} cannot be used; use multiples of {step} up to {most}")
        require_writable(self.out)


def main(argv: list[str]) -> int:
    """Run `fourbit probe` with `argv`; return the exit status of the module's docstring.

    Raises:
        ValueError: a bad argument, an `out` that cannot be written included; nothing has run then.
    """
    config = tyro.cli(ProbeConfig, args=argv, prog="fourbit probe")
    config.check()
    try:
        device = resolve(config.device)
    except DeviceAbsent as error:
        print(f"not run: {error}")
        _write(config, {"status": "not run", "reason": str(error)})
        return 2
    listed = list(routes(device, config.routes, config.formats))
    print(describe(device)["name"], flush=True)
    found = _steps(listed)
    print(flush=True)
    cuts = _cuts(listed, config)
    ran = sum(entry["not_run"] is None for entry in found)
    print(f"{ran} of {len(listed)} routes probed" + "; the others are not run" * (ran < len(listed)))
    about = {"status": "probed" if ran else "not run", "device": describe(device)}
    _write(config, about | {"routes": found, "long": cuts})
    return 0 if ran else 2


def _write(config: ProbeConfig, result: dict[str, Any]) -> None:
    if config.out is None:
        return
    asked = {name: value for name, value in asdict(config).items() if name != "out"}
    about = {"command": "probe", "date": date(), "versions": versions(), "config": asked}
    write_whole(config.out, json.dumps(about | result, indent=1) + "\n")


def _steps(listed: list[Route]) -> list[dict[str, Any]]:
    """Print the first table; what was found, for JSON."""
    print(_line("route", "format", f"steps of K = {K}", "F", "cut", "output", "c", "e_zero", "NaN", "row"), flush=True)
    entries = []
    for route in listed:
        entry: dict[str, Any] = {"route": route.name, "format": route.fmt.name, "not_run": route.not_run}
        if route.not_run is not None:
            print(f"{route.name:<22} {route.fmt.name:<6} not run: {route.not_run}", flush=True)
        else:
            found = find(route.machine(64), K)
            print(row_of(route, found), flush=True)
            entry |= {"made by": route.note, "found": asdict(found)}
        entries.append(entry)
    return entries


def _line(*cells: str) -> str:
    widths = (22, 6, 22, 4, 12, 16, 26, 6, 8)
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)) + " " + cells[-1]


def row_of(route: Route, found: Found) -> str:
    """A line of the first table."""
    output = "-" if found.output_bits is None else f"{found.output_bits}, {found.output or 'not found'}"
    output = output.replace(", or more", " or more")
    more = {True: "; exponents of normalized products", False: "", None: ""}[found.normalized]
    if found.products is not None and found.order.length == 1:
        more += "; products are rounded first" * (found.products == "rounded") + "; fma" * (found.products == "exact")
    if found.overflow is not None and found.overflow != float("inf"):
        more += f"; 2^127 + 2^127 gives {found.overflow:g}"
    rows = ", ".join(found.rows) or "no row"
    if found.rows and found.order.block is not None and "mma_sync" not in rows:
        rows += f", within blocks of {found.order.block}"
    cells = (found.fraction_bits, found.cut, output, found.c, found.e_zero)
    texts = ["-" if cell is None else str(cell) for cell in cells]
    nan = "-" if found.nan is None else f"{found.nan:08x}"
    steps = (
        found.order.text + ", " * (found.order.block is not None) + found.order.cut * (found.order.block is not None)
    )
    return _line(route.name, route.fmt.name, steps, *texts, nan, f"{rows}{more} ({route.note})")


def _cuts(listed: list[Route], config: ProbeConfig) -> list[dict[str, Any]]:
    """Print the second table; the same for JSON."""
    ready = [route for route in listed if route.not_run is None]
    if not ready or not config.lengths:
        return []
    print(f"{'route':<22} {'format':<6} {'M = N':>6} {'K':>6}  sums apart", flush=True)
    entries = []
    for route in ready:
        for size in config.sizes[:1] if route.name == "tl.dot" else config.sizes:
            for k in config.lengths:
                order, added = _cut(route, size, k)
                text = order.cut if order.steps or "unknown: " in order.cut else order.text
                text += f"; {added}" * bool(added)
                print(f"{route.name:<22} {route.fmt.name:<6} {size:>6} {k:>6}  {text}", flush=True)
                entries.append({"route": route.name, "format": route.fmt.name, "size": size, "k": k, "text": text})
    return entries


def _cut(route: Route, size: int, k: int) -> tuple[Order, str | None]:
    """The order of K products looked at `PLACES` at a time, and how the sums of blocks are rounded."""
    machine, apart = route.machine(size), max(k // PLACES, 1)
    order = find_order(machine, k, range(0, k, apart))
    if order.block is None or not order.contiguous:
        return order, None
    bits, rounding = result(machine, k, (0, order.block), None)
    return order, f"their sums have {bits} fraction bits, {rounding}" if bits is not None else None
