"""A reference that no run has been: an average of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from etude.core.fields import Probability
from etude.core.slots import Reference
from etude.core.worlds import World
from etude.runtime.checkpoints import check_shapes, newest_model

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.method import Method
    from etude.policies.language import LanguagePolicy


class Soup(Reference):
    """The average of the policy's weights at its start and those of other models, coordinate by coordinate; it stays.

        theta_ref = share theta_start + (1 - share) mean_k theta_k

    Models of which an average means anything began from one checkpoint. If all are equal it is their weights, to the
    last bit.

    Args:
        models: the others, of the policy's shape: runs, of which the newest whole checkpoint is taken, or folders.
        share: of the policy's own weights; None: as much as of each other one.

    Shapes: weights [...] of the same name -> [...].

    Raises: ConfigError for a model of another shape, and for a policy of which an adapter alone is trained.

    A reference weight of a policy that starts at 1 and of a model that has 2:

    >>> import torch
    >>> start, other = {"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}
    >>> Soup(models=("RUN",)).averaged(start, [other])["w"].item()
    1.5
    >>> Soup(models=("RUN",), share=0.75).averaged(start, [other])["w"].item()
    1.25
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    models: tuple[str, ...] = ()
    share: Probability | None = None

    def check(self) -> None:
        object.__setattr__(self, "models", tuple(map(newest_model, self.models)))

    def objection(self, method: Method) -> str | None:
        wants = "averages the policy with no other model: name runs with --set reference.models=RUN."
        return None if self.models else wants

    def averaged(self, start: Mapping[str, Tensor], others: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The weights by name."""
        rest = 1 / (len(others) + 1) if self.share is None else (1 - self.share) / len(others)
        return {name: w + sum(rest * (o[name] - w) for o in others) for name, w in start.items()}

    def begin(self, policy: LanguagePolicy) -> None:
        start, others = {k: v.detach() for k, v in policy.masters.whole().items()}, []
        for model in self.models:
            found = type(policy).load(model, device=str(policy.device)).merged().state_dict()
            check_shapes(model, start, found, "the policy")
            others.append({k: found[k].to(v) for k, v in start.items()})
        policy.move_reference(1.0, self.averaged(start, others))
