"""What a run ran on: versions, commit, hardware, threads, seed. Never a secret: variables by allow-list only."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from etude.core import kernels
from etude.runtime.sandbox.consent import unsafe

PACKAGES = ("etude", "torch", "transformers", "tokenizers", "safetensors", "numpy", "gymnasium", "envpool", "mujoco")
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "MKL_NUM_THREADS", "OMP_NUM_THREADS",
    "PYTHONHASHSEED", "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
"""The only environment variables that are ever recorded."""
SECRET = re.compile(
    r"(^|_)(api_?key|access_?key|secret|password|passwd|credentials?|auth|(api|auth|hf|access)_?token)s?$"
)
MASK = "(masked)"


def record(seed: int) -> dict[str, Any]:
    """Everything that the numbers of a run may depend on, as JSON values."""
    import torch

    return {
        "seed": seed,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "commit": commit(Path.cwd()),
        "platform": platform.platform(),
        "processor": _processor(),
        "kernels": kernels.requested(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "unsafe_no_sandbox": unsafe(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A sentence about each difference for which a resumed run does not go on exactly."""
    pairs = [(k, before.get("versions", {}).get(k), v) for k, v in now["versions"].items()]
    pairs += [(k, before.get(k), now[k]) for k in ("processor", "kernels", "devices", "threads")]
    return [f"Since this run started, {what} changed from {_show(old)} to {_show(new)}: it does not go on exactly, the "
            "last digits may differ." for what, old, new in pairs if old != new]  # fmt: skip


def commit(folder: Path) -> str | None:
    """The git commit that a folder stands on, with '-dirty' if tracked files differ; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def masked(value: object) -> Any:
    """JSON values with whatever stands under a name like 'api_key' or 'password' masked."""
    if isinstance(value, Mapping):
        return {k: MASK if v and SECRET.search(str(k).lower().replace("-", "_")) else masked(v)
                for k, v in value.items()}  # fmt: skip
    return [masked(v) for v in value] if isinstance(value, (list, tuple)) else value


@cache  # reading it takes longer than a step of a small run
def version(package: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The model of the processor, as far as the system tells."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _show(value: object) -> str:
    return "none" if value is None else ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
