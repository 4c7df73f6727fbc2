"""A network of my own: called with the shape of one observation, it maps [N, *shape] to [N, width]."""

from torch import nn


class Net(nn.Sequential):
    def __init__(self, shape):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], 32), nn.SiLU())
