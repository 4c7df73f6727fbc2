"""What is done to images each time that they are learned from."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.sampling_slots import Augmentation, Drawing


class RandomShift(Augmentation):
    """Images moved by up to so many pixels up or down and left or right, their edge repeated (DrQ, arXiv:2004.13649).

        x'[c, i, j] = x[c, clip(i + u), clip(j + v)],   u, v uniform in {-pixels, ..., pixels}

    Every row of a batch has numbers of its own, what it saw others than what it led to; all frames of a stack, and all
    steps of a window, move as one.

    Shapes: [P, N, ..., C, H, W], in the images' own dtype.

    >>> picture = torch.arange(9).view(1, 1, 1, 3, 3)
    >>> up_and_left = lambda name, of: torch.tensor([[[1, -1]]])
    >>> RandomShift(pixels=1)(picture, up_and_left, "here").squeeze().tolist()
    [[3, 3, 4], [6, 6, 7], [6, 6, 7]]
    """

    pixels: Count = 4

    def accepts(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3:
            raise ConfigError(
                f"RandomShift moves images, and observations are vectors {list(shape)}: set sampling.augment=none."
            )

    def __call__(self, seen: Tensor, draw: Drawing, name: str) -> Tensor:
        count, (height, width) = seen.shape[1], seen.shape[-2:]

        def shifts(generator: Generator, times: int) -> Tensor:
            return torch.randint(2 * self.pixels + 1, (times, count, 2), generator=generator) - self.pixels

        down, right = (draw(name, shifts).to(seen.device) + self.pixels).unbind(-1)
        rows, columns = (
            torch.arange(-self.pixels, n + self.pixels, device=seen.device).clamp(0, n - 1) for n in (height, width)
        )
        wide = seen.flatten(2, -3).index_select(-2, rows).index_select(-1, columns)
        windows = wide.unfold(-2, height, 1).unfold(-2, width, 1)  # [P, N, C, down, right, H, W], a view
        members, places = (torch.arange(n, device=seen.device) for n in seen.shape[:2])
        return windows[members[:, None], places, :, down, right].view_as(seen)
