"""A step that is taken over and over on tensors of the same shapes, as a CUDA graph.

A step of a decoder is some thousand small kernels, which Python puts into the device's queue one by one: at 0.5 billion
parameters that takes ten times as long as computing them. A graph puts them there by one call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_streams: dict[torch.device, torch.cuda.Stream] = {}


class Recorded:
    """A step, recorded when it is taken for the second time and replayed from then on; not where it cannot be.

    Args:
        step: computes a tensor from tensors, and asks the device nothing. What else it reads stays where it is.
    """

    def __init__(self, step: Callable[..., Tensor]) -> None:
        self.step = step
        self.inputs: list[Tensor] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.out: Tensor | None = None
        self.refused: str | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the step makes of the inputs, whose shapes and dtypes are those of the first time."""
        again = bool(self.inputs)
        if again:
            for mine, given in zip(self.inputs, inputs, strict=True):
                mine.copy_(given)
        else:
            self.inputs = [x.clone() for x in inputs]
        if again and self.graph is None and self.refused is None and self.inputs[0].device.type == "cuda":
            self._record()
        if self.graph is None or self.out is None:
            return self.step(*self.inputs)
        self.graph.replay()
        return self.out.clone()

    def _record(self) -> None:
        """Run the step into a graph; `refused` says why it cannot be. Other threads may use the device meanwhile."""
        device = self.inputs[0].device
        stream = _streams.setdefault(device, torch.cuda.Stream(device))
        stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.out = self.step(*self.inputs)
            except RuntimeError as refused:
                self.refused = str(refused)
            try:
                graph.capture_end()
            except RuntimeError as refused:
                self.refused = self.refused or str(refused)
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = None if self.refused else graph
