"""Which kernels compute matrix products: reproducible ones are asked for before torch loads.

MKL chooses a kernel by the processor, by the shape of a product and by where its operands lie, so that a member of a
population may get other last bits than a run of its own (seen on an AMD EPYC; on a Xeon with AVX-512 never). The
variable MKL_CBWR narrows the choice. MKL reads it once, so `import etude` sets it, unless the user did.

Processor time of products by mode, without a mode = 1 (torch 2.13.0, MKL 2024.2, one thread):

    processor           AVX2          AVX512        AUTO,STRICT   AVX2,STRICT   AVX512,STRICT   COMPATIBLE
    AMD EPYC, AVX-512   1.00 to 1.02  1.00 to 1.02  1.03          1.05                          2.0
    Xeon, AVX-512       1.5 to 2.5    0.97 to 1.06  0.95 to 1.33  1.3 to 2.0    1.0 to 1.3      2.0 to 6.1

Members equalled their own runs on the EPYC in AVX2, AVX2,STRICT, AUTO,STRICT, AVX512,STRICT and COMPATIBLE, not without
a mode; on the Xeon in all that were tried (AVX2, AVX512, AUTO,STRICT, none). `docs/log.md` has the shapes.

MKL also computes torch's tanh, and by vendor: seven times as long as NumPy's vector loops on an AMD EPYC, in any mode.
Which of the two a processor gets goes by its name, not by a clock, so that numbers repeat.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

VARIABLE = "MKL_CBWR"
LATE = "not asked for (torch was loaded before etude)"
MODES = (("GenuineIntel", "avx512f", "AVX512"), ("GenuineIntel", "avx2", "AVX2"), ("AuthenticAMD", "avx2", "AVX2"))
"""Vendor, what the processor can do, mode: the first line that fits."""
OTHER = "AUTO,STRICT"
"""The mode of x86 processors that are not in the table."""
NUMPYS = ("AuthenticAMD", "avx2")
"""Vendor of the processors whose tanh NumPy computes, and what they must be able to do."""


def request() -> None:
    """Ask for this processor's mode, unless torch is loaded already or the user asked for one."""
    mode = mode_of(platform.machine(), _first_processor())
    if mode is not None and "torch" not in sys.modules:
        os.environ.setdefault(VARIABLE, mode)


def mode_of(machine: str, description: str) -> str | None:
    """The mode for a processor, described as in /proc/cpuinfo ('' if the system does not tell); None without MKL."""
    if machine.lower() not in ("x86_64", "amd64"):
        return None
    words = set(description.split())
    return next((mode for vendor, flag, mode in MODES if {vendor, flag} <= words), OTHER)


@cache
def numpy_tanh() -> bool:
    """Whether NumPy's tanh is this processor's faster one. Both are the same function but for the last bit or two."""
    return wants_numpy(platform.machine(), _first_processor())


def wants_numpy(machine: str, description: str) -> bool:
    """Whether MKL would slow this processor's tanh down, described as in `mode_of`."""
    return mode_of(machine, description) is not None and set(NUMPYS) <= set(description.split())


def requested() -> str | None:
    """What a run records: the mode that was asked for, `LATE` if that was impossible; None where there is no MKL."""
    if mode_of(platform.machine(), "") is None:
        return None
    return os.environ.get(VARIABLE, LATE)


def _first_processor() -> str:
    """The beginning of /proc/cpuinfo, where the first processor is described."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            return file.read(1 << 13)
    except OSError:
        return ""
