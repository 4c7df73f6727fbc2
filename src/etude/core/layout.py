"""From the host to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def sent(array: np.ndarray, device: torch.device) -> Tensor:
    """An array on a device, which it is sent to without waiting until the device has come so far."""
    import torch

    return torch.from_numpy(array).to(device, non_blocking=True)
