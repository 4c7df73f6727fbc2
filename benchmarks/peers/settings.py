"""A composition in a peer's own words: which of its trainers, with which settings.

What a peer cannot do is in `lacks`, as a sentence; what this cannot translate is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.advantages.group import BatchStd, GroupAdvantage, GroupMean, LeaveOneOut
from etude.advantages.returns import RewardToGo
from etude.core.errors import ConfigError
from etude.experience.data import Demonstrations, Pairs
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.optimizers.adam import CONTROL_RATE, automatic_rate
from etude.optimizers.schedules import Linear
from etude.optimizers.trust_region import TrustRegion
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.outcome import OverlongPenalty

TINY = 500_000
"""Parameters of the shipped model, of which its learning rate is a function."""
LOSS = {"sequence-mean": "grpo", "token-mean": "dapo", "fixed-length": "dr_grpo"}
"""TRL's loss type for an aggregation: over a batch of one step they have the same denominators."""


@dataclass(frozen=True)
class Words:
    """What a peer is told.

    Args:
        trainer: as `trl_runs.py` and `sb3_runs.py` know it.
        about: fields of the job that both libraries share.
        settings: the peer's own.
        lacks: what of the method it leaves out.
    """

    trainer: str
    about: dict[str, Any]
    settings: dict[str, Any]
    lacks: tuple[str, ...] = ()


def trl(method: Any, limit: int) -> Words:
    """A method of language for TRL.

    Args:
        limit: tokens of a completion at most.

    Raises: ConfigError for a composition that TRL has no trainer for.
    """
    about = {"problems": method.problems, "lr": method.optimizer.lr or automatic_rate(TINY), "max_tokens": limit}
    if method.epochs * method.minibatches > 1:
        raise ConfigError(f"{method.id} uses a batch several times, which is not translated.")
    if isinstance(method.experience, Demonstrations):
        return Words("sft", about, {})
    if isinstance(method.experience, Pairs):
        return Words("dpo", about, {"beta": method.objective.beta})
    about["size"] = method.experience.size
    if any(isinstance(reward, OverlongPenalty) for reward in method.rewards):
        about["overlong"] = next(r.buffer for r in method.rewards if isinstance(r, OverlongPenalty))
    lacks = ("TRL has no dynamic sampling: groups whose rewards are all equal stay, and teach nothing.",)
    trainer, own = _advantages(method, limit)
    if isinstance(method.objective, ClippedSurrogate):
        own |= {"epsilon": method.objective.low, "epsilon_high": method.objective.high}
    return Words(trainer, about, {"beta": 0.0, **own}, lacks if method.filters else ())


def _advantages(method: Any, limit: int) -> tuple[str, dict[str, Any]]:
    """The trainer, and how it scales advantages and adds up losses."""
    part = method.advantages
    if isinstance(part, RewardToGo):
        return "reinforce", {"loss_type": LOSS[method.aggregation]}
    assert isinstance(part, GroupAdvantage)
    if isinstance(part.centre, LeaveOneOut):
        # TRL does not divide a completion's loss by the limit, so its gradient is as many times as large
        return "rloo", {"normalize_advantages": False, "max_grad_norm": method.optimizer.clip_norm * limit}
    if not isinstance(part.centre, GroupMean):
        raise ConfigError(f"TRL has no baseline like that of {method.id}.")
    scale = "none" if part.scale is None else "batch" if isinstance(part.scale, BatchStd) else "group"
    return "grpo", {"loss_type": LOSS[method.aggregation], "scale_rewards": scale}


def sb3(method: Any) -> Words:
    """A method of control for SB3 and its contributions."""
    rollouts, credit, optimizer = method.experience, method.advantages, method.optimizer
    entropy = sum(part.coefficient for part in method.regularizers)
    own = {"n_steps": rollouts.steps, "gamma": credit.gamma, "gae_lambda": credit.lam, "normalize_advantage": True}
    seen = any(isinstance(part, NormalizeObservations) for part in method.policy.observations)
    about = {"environments": rollouts.environments, "normalize": seen}
    if isinstance(optimizer, TrustRegion):
        fit = method.critic.learning
        about |= {"lr": fit.optimizer.lr, "anneal": isinstance(fit.optimizer.schedule, Linear)}
        region = {
            "target_kl": optimizer.delta, "cg_damping": optimizer.damping, "cg_max_steps": optimizer.iterations,
            "line_search_shrinking_factor": optimizer.shrink, "line_search_max_iter": optimizer.tries,
            "n_critic_updates": fit.epochs, "batch_size": rollouts.environments * rollouts.steps // fit.minibatches,
        }  # fmt: skip
        return Words("TRPO", about, {**own, **region})
    about |= {"lr": optimizer.lr or CONTROL_RATE, "anneal": isinstance(optimizer.schedule, Linear)}
    # SB3 has no factor 1/2 in the value's loss
    own |= {"ent_coef": entropy, "vf_coef": method.critic.coefficient / 2, "max_grad_norm": optimizer.clip_norm}
    if method.epochs * method.minibatches == 1:
        return Words("A2C", about, {**own, "use_rms_prop": False})
    batch = rollouts.environments * rollouts.steps // method.minibatches
    clip = {"clip_range": method.objective.high, "clip_range_vf": method.critic.clip}
    return Words("PPO", about, {**own, **clip, "n_epochs": method.epochs, "batch_size": batch})
