"""1-shot RLVR: reinforcement learning on one problem, over and over (arXiv:2504.20571).

Changes GRPO in four places:

1. the problems: one (or a few), copied until the step is full, each copy with a group of its own. It is chosen from a
   run on the whole pool by how much its mean reward s_{i,e} moved over the epochs e: v_i = var_e s_{i,e}, ranked from
   the largest (the released code ranks by the deviation, which is the same order);
2. 0.001 KL to the first policy (k3) and 0.001 of the entropy, which goes on exploring once all completions are right:

       loss = L_grpo + 0.001 KL_k3(pi || pi_ref) - 0.001 H(pi)    (then all advantages are 0, and L_grpo with them);

3. temperature 0.6;
4. AdamW's weights decay by 0.01 times the rate, as the released trainer's do.

Both runs, the first of which is that of the whole pool:

    etude train grpo --set curriculum=recorded --out runs/pool
    etude train one-shot-rlvr --set curriculum.chosen.run=runs/pool

`curriculum.chosen.ranks=1,13` takes the first and the thirteenth, `curriculum.chosen=named-problems` and
`curriculum.chosen.ids=ID` a problem by its id; `curriculum.of=first-problems` leaves the first run a pool that it
passes over more often. The paper's ablations, by what is set beside that:

    policy loss only        regularizers=none optimizer.weight_decay=0
    + weight decay          regularizers=none
    + KL                    regularizers=kl-to-reference regularizers.0.coefficient=0.001
    + entropy               (the method)
    weight decay only       regularizers.kl-to-reference.coefficient=0 regularizers.entropy-bonus.coefficient=0
                            rewards.task-reward.weight=0
    KL only                 regularizers=kl-to-reference regularizers.0.coefficient=0.001 rewards.task-reward.weight=0
    entropy only            regularizers=entropy-bonus regularizers.0.coefficient=0.001 rewards.task-reward.weight=0
    a wrong label           curriculum.answers=TEXT

`etude studies run one-shot-rlvr` puts them beside each other. Without a reward all advantages are 0.
`evaluation/saturation.py` has what is gained once the problem is solved. The released trainer takes means over all
tokens: `aggregation=token-mean`; here, as in GRPO, completions are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from etude.core.claims import Claim, Measure
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.method import Method
from etude.core.part import Part
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.epochs import EpochMeans, state_file
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.references.frozen import Frozen
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference


class Choice(Part, abstract=True):
    """Which few problems are trained on."""

    slot = "chosen"

    def names(self) -> list[str]:
        """Their ids. Raises ConfigError where they cannot be told."""
        raise NotImplementedError


class NamedProblems(Choice):
    """Those of these ids.

    >>> NamedProblems(ids=("sum/1", "sum/7")).names()
    ['sum/1', 'sum/7']
    """

    ids: tuple[str, ...] = ()

    def objection(self, method: Method) -> str | None:
        return None if self.ids else "names no problem: set curriculum.chosen.ids to one or more."

    def names(self) -> list[str]:
        return list(self.ids)


class ByVariance(Choice):
    """Those whose mean reward moved most over the epochs of another run, by rank from 1.

    Args:
        run: that run, of which the newest whole checkpoint is taken; it kept a record (`curriculum=recorded`).
        ranks: places in the order of variances.

    Raises: ConfigError for a run without a record, and for a rank at which no problem moved or is.

    >>> ByVariance(run="runs/pool", ranks=(1, 13)).ranks
    (1, 13)
    """

    run: str = ""
    ranks: tuple[Count, ...] = (1,)

    def check(self) -> None:
        if not self.ranks:
            raise ConfigError("ByVariance.ranks must have at least one rank.")
        if self.run and (path := state_file(self.run)).is_file():  # named as it is now: a run may go on
            object.__setattr__(self, "run", str(path))

    def objection(self, method: Method) -> str | None:
        if self.run:
            return None
        return (
            "has no run to rank problems by: train the whole pool with `etude train grpo --set curriculum=recorded` "
            "and name its run with --set curriculum.chosen.run=RUN, or a problem with --set "
            "curriculum.chosen=named-problems --set curriculum.chosen.ids=ID."
        )

    def names(self) -> list[str]:
        record = EpochMeans.of_run(self.run)
        order = record.ranked()
        if max(self.ranks) > len(order):
            raise ConfigError(
                f"ByVariance.ranks has {max(self.ranks)}, and the record of {self.run} has {len(order)} problems."
            )
        for rank in self.ranks:
            if record.variance(order[rank - 1]) == 0:
                raise ConfigError(
                    f"The rewards of the problem of rank {rank} in the record of {self.run} never moved, so it has no "
                    "rank: let that run pass over its pool twice or more, or name a rank before it."
                )
        return [order[rank - 1] for rank in self.ranks]


class Replicated(Curriculum):
    """A few problems in turn until there are as many as a step takes: each copy has a group of its own.

    They are chosen once, when the run begins; from then on they are in its checkpoints.

    Args:
        chosen: which.
        answers: taken for right in place of the problems' own, one for each (a wrong label); empty: their own.
        size: how many of the pool's problems they are looked for among.

    Raises: ConfigError if a problem is not there, or has no place in `answers`.

    >>> pool = [Problem("0", "1+1=", "2"), Problem("1", "1+2=", "3")]
    >>> part = Replicated(chosen=NamedProblems(ids=("1",)), answers=("7",)).bind()
    >>> [(p.id, p.answer) for p in part.choose(pool, 3, Stream(0))]
    [('1', '7'), ('1', '7'), ('1', '7')]
    """

    chosen: Choice = ByVariance()
    answers: tuple[str, ...] = ()
    size: Count = 2000

    def initial_state(self) -> dict[str, Any]:
        return {"ids": [], "drawn": 0}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        few, drawn = self._few(pool), self.state["drawn"]
        self.state["drawn"] = drawn + count
        return [few[(drawn + i) % len(few)] for i in range(count)]

    def _few(self, pool: Sequence[Problem]) -> list[Problem]:
        """The chosen problems, found once."""
        if self.made.get("pool") is not pool:
            self.state["ids"] = self.state["ids"] or self.chosen.names()
            self.made.update(pool=pool, few=self._relabelled(self._found(pool)))
        few: list[Problem] = self.made["few"]
        return few

    def _found(self, pool: Sequence[Problem]) -> list[Problem]:
        wanted: dict[str, Problem | None] = dict.fromkeys(self.state["ids"])
        for problem in (pool[i] for i in range(min(self.size, len(pool)))):
            if problem.id in wanted:
                wanted[problem.id] = problem
            if None not in wanted.values():
                break
        if missing := [name for name, problem in wanted.items() if problem is None]:
            raise ConfigError(
                f"The problem {missing[0]!r} is not among the first {min(self.size, len(pool))} of the pool: name one "
                f"that is (the first is {pool[0].id!r}), or look at more (curriculum.size)."
            )
        return [p for name in self.state["ids"] if (p := wanted[name]) is not None]

    def _relabelled(self, few: list[Problem]) -> list[Problem]:
        if self.answers and len(self.answers) != len(few):
            raise ConfigError(f"Replicated.answers has {len(self.answers)}, and {len(few)} problems were chosen.")
        return [replace(p, answer=a) for p, a in zip(few, self.answers)] if self.answers else few


one_shot_rlvr = grpo.replace(
    id="one-shot-rlvr",
    title="Reinforcement Learning for Reasoning in Large Language Models with One Training Example",
    paper="arXiv:2504.20571",
    curriculum=Replicated(),
    experience=Groups(size=8, temperature=0.6),
    regularizers=(KLToReference(coefficient=0.001), EntropyBonus(coefficient=0.001)),
    reference=Frozen(),
    optimizer=AdamW(weight_decay=0.01),
    claim=Claim(
        statement="One problem, whose reward moved most in a run on all of them, teaches as much as all of them.",
        task="compose",
        measures=(
            Measure(name="accuracy", direction="equal", smallest=0.05),
            Measure(name="accuracy against the base", role="mechanism", smallest=0.05),
            Measure(name="accuracy without the entropy", role="mechanism", smallest=0.05),
            Measure(name="accuracy by the entropy alone, against the base", role="mechanism", smallest=0.05),
            Measure(name="share of right completions of the problem", role="mechanism", minimum=0.99),
            Measure(name="gain after saturation", role="mechanism", smallest=0.02, against=0.0, bounds=(-1.0, 1.0)),
        ),
        learned_on="accuracy",
        paper_effect="MATH500 from 36.0% to 73.6% with one problem, as with all 1,209; over six sets from 17.6% to "
        "35.7% (35.9%); the entropy alone, without a reward, gains 27.4 points on MATH500",
    ),
)
