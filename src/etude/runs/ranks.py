"""Runs of language whose updates several processes take together (`--ranks N`): who can, and how they are started."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.complete import complete_token
from etude.core.episodes import FIRST
from etude.core.errors import ConfigError, EtudeError
from etude.core.method import Method
from etude.core.players import names_of
from etude.core.slots import Reference
from etude.core.stages import applied
from etude.core.task import LanguageTask
from etude.runs.samplers import READ, load_policy
from etude.runs.training import Options, options_of

if TYPE_CHECKING:
    from etude.loops.team import Follower, Team
    from etude.policies.language import LanguagePolicy


def check(method: Method, task: LanguageTask, options: Options) -> None:
    """Raise ConfigError for ranks of what other processes cannot make again, or would learn otherwise."""
    if (options.ranks or 1) == 1:
        return
    if options.shard:
        _check_shard(method, options)
    if any(names_of(complete_token(own), task) != (FIRST,) or own.slots()["roles"] for _, own in applied(method)):
        raise ConfigError(
            f"--ranks {options.ranks} is for episodes of one player, and those of {method.id} on {task.id} have roles."
        )
    if options.adapter is not None and options.adapter.dropout:
        raise ConfigError(
            "adapter.dropout drops out by the number of the forward pass, and each rank has others: leave --ranks out."
        )
    try:
        Method.from_json(json.loads(json.dumps(method.to_json())))
    except (EtudeError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"--ranks {options.ranks} makes {method.id} again in processes of their own, from its names and values, "
            f"and that cannot be done ({error}): put its functions into a file (my_rewards.py:score), or leave "
            "--ranks out."
        ) from None


def _check_shard(method: Method, options: Options) -> None:
    """Raise ConfigError for weights that are not to be divided."""
    if options.adapter is not None:
        raise ConfigError("--shard divides weights that are trained, and of an adapter these are few: leave one out.")
    for own in map(complete_token, (own for _, own in applied(method))):
        if own.own_critic is not None:
            raise ConfigError(
                f"--shard divides the policy alone, and the critic of {method.id} is a network of its own that every "
                "rank would hold whole: leave --shard out, or take a value head (--set critic=token-critic)."
            )
        if own.optimizer.halves:
            raise ConfigError(
                f"The optimizer of {method.id} compares the gradients of two halves of a minibatch, of which no rank "
                "has more than its part with --shard: leave it out."
            )


def _check_reference(method: Method, policy: LanguagePolicy) -> None:
    """Raise ConfigError for a reference that would move towards rounded weights."""
    from etude.policies.masters import LOW

    moving = (own.reference for own in map(complete_token, (own for _, own in applied(method))) if own.reference)
    if policy.dtype in LOW and any(type(part).refresh is not Reference.refresh for part in moving):
        raise ConfigError(
            f"The reference of {method.id} moves towards exact weights, and with --shard the first rank has them in 16 "
            "bits alone: train in --dtype float32, or leave --shard out."
        )


def team_of(method: Method, options: Options, policy: LanguagePolicy, budget: int) -> Team | None:
    """The other ranks of a run, started and met; None where there are none.

    Args:
        policy: of this rank, whose weights are divided among all where they are to be.
    """
    if (options.ranks or 1) == 1:
        return None
    import torch

    from etude.loops.team import Follower, Team
    from etude.policies import shards
    from etude.runtime.executors.processes import Processes
    from etude.runtime.ranks import Gloo, LostRank

    if options.shard:
        shards.check(policy.model)
        _check_reference(method, policy)
    told, count = dataclasses.asdict(options), options.ranks or 1
    arguments = {
        "method": method.to_json(), "options": {key: told[key] for key in READ}, "steps": options.steps,
        "budget": budget, "threads": torch.get_num_threads(),
    }  # fmt: skip
    executor = Processes(
        Follower, "etude.runs.ranks:follower", arguments, count - 1, name="Other rank", restarts=0,
        own=[{"rank": k} for k in range(1, count)],
    )  # fmt: skip
    try:
        executor.ask("ready")
        with tempfile.TemporaryDirectory(prefix="etude-ranks-") as folder:
            meeting = Path(folder) / "meeting"
            answer = executor.begin("join", None, meeting=str(meeting), count=count, shard=options.shard)
            try:
                ranks = Gloo(meeting, 0, count, lockstep=options.shard)
                if options.shard:
                    policy.divide(ranks)
            except LostRank:
                answer.result()
                raise
            answer.result()
    except BaseException:
        executor.close()
        raise
    return Team(executor, ranks)


def follower(
    method: Mapping[str, Any], options: Mapping[str, Any], steps: int, budget: int, threads: int, rank: int
) -> Follower:  # fmt: skip
    """The role in a process of its own."""
    import torch

    from etude.loops.team import Follower

    torch.set_num_threads(threads)
    own = options_of(Options, options)
    return Follower(
        Method.from_json(method), load_policy(own), rank=rank, seed=own.seed, steps=steps, budget=budget
    )  # fmt: skip
