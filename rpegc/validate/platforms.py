"""GPUs of published RL runs that the catalogue lacks, as variants of machines that it has."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from rpegc.hardware import Figure, Machine, load_machine
from rpegc.validate.facts import gpu_of, machine
from rpegc.validate.table import Row, SkipRow

_SPEC = "data sheet of the vendor, or as the source of the row prints it"
# Name, base machine, BF16 peak, FP8 peak, memory bandwidth and bytes, share of NVLink's bandwidth, sustained share.
_VARIANTS = {
    "l20": ("L20 48 GB", "h20", 119.5e12, 239e12, 0.864e12, 48e9, 0.07, 0.80),
    "mi300x": ("MI300X 192 GB", "h200-dgx", 1307e12, 2614e12, 5.3e12, 206e9, 0.8, 0.50),
    "c550": ("C550 64 GB", "a100-80g", 280e12, 280e12, 1.8e12, 64e9, 0.8, 0.75),
    "rtx-pro-6000": ("RTX-PRO-6000 96 GB", "h20", 500e12, 1000e12, 1.79e12, 102e9, 0.07, 0.70),
}
_PRINTED = ((r"MI300", "mi300x"), (r"C550", "c550"), (r"RTX PRO 6000", "rtx-pro-6000"), (r"\bL20\b", "l20"))
_PEAKS = (("h20", 130.0, 150.0), ("l20", 105.0, 125.0), ("h100-dgx", 850.0, 1000.0))
"""BF16 peaks (TFLOP/s) that a log's model FLOP utilisation implies, attention left out: they name the GPU."""


def platform_of(row: Row) -> str:
    """Return the key of a row's GPU: as printed, else as the printed utilisation implies."""
    printed = row["gpu"]
    for pattern, key in _PRINTED:
        if re.search(pattern, printed):
            return key
    if printed:
        return gpu_of(row)
    implied = row.get("implied_peak_tflops", "")
    for key, low, high in _PEAKS:
        if implied and low <= float(implied) <= high:
            return key
    raise SkipRow("the GPU is not named, and no printed utilisation implies it")


@cache
def platform(key: str) -> Machine:
    """Return a machine by key."""
    if key not in _VARIANTS:
        return machine(key)
    name, base, peak, fp8, bandwidth, held, links, sustained = _VARIANTS[key]
    found = load_machine(base)
    gpu = found.accelerator
    scale = peak / gpu.peak_bf16.value

    def figure(value: float) -> Figure:
        return Figure(value, "assumed", _SPEC)

    accelerator = replace(
        gpu,
        name=name,
        peak_bf16=figure(peak),
        peak_fp8=figure(fp8),
        hbm_bytes=figure(held),
        hbm_bandwidth=figure(bandwidth),
        hbm_achieved=figure(0.84 * bandwidth),
        gemm_asymptote=figure(min(sustained + 0.1, 1.0) * peak),
        gemm_sustained=figure(sustained * peak),
        gemm_bandwidth=figure(0.84 * bandwidth),
        attention_table_asymptote=figure(gpu.attention_table_asymptote.value * scale),
        attention_forward_asymptote=figure(gpu.attention_forward_asymptote.value * scale),
    )
    curves = {
        kind: replace(curve, bandwidth=figure(curve.bandwidth.value * links)) for kind, curve in found.curves.items()
    }
    return replace(found, name=key, accelerator=accelerator, curves=curves)
