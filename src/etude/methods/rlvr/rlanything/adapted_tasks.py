"""Tasks that become harder or easier with the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.advantages.group import solved_share
from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.fields import Count, Probability
from etude.core.method import Method
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.prioritised import difficulty


def wish(share: float, low: float = 0.2, high: float = 0.8) -> int:
    """Which variant a task that was solved so often should have: 1 harder, -1 easier, 0 none."""
    return int(share >= high) - int(share <= low)


def accepted(direction: int, old: float, new: float, low: float = 0.2, high: float = 0.8) -> bool:
    """Whether a variant that was solved `new` of the time replaces a task that was solved `old` of the time."""
    return low <= new < old if direction > 0 else old < new <= high


class AdaptedTasks(Curriculum):
    """Slots that each hold a difficulty, made harder or easier by how often their problems are solved.

    Difficulties are the pool's levels in the order of the numbers in them. A slot's problem is drawn afresh on every
    visit. In `state`: each slot's level, what it proposes and what it was solved before, and counts of the outcomes.

    Args:
        slots: how many; visited in turn.
        size: so many of the pool's problems are drawn from.
        low, high: the band of the share that is solved.
        adapt: whether anything is proposed.

    Shapes: learns from solved and group [B] of every scored batch.

    >>> part = AdaptedTasks(slots=2).bind()
    >>> part.state.update(levels=[3, 3], proposed={"0": [1, 0.9]})  # solved 90 % of the time: one level harder
    >>> part.level(0), part.level(1)
    (4, 3)
    """

    slots: Count = 32
    size: Count = 2000
    low: Probability = 0.2
    high: Probability = 0.8
    adapt: bool = True

    def objection(self, method: Method) -> str | None:
        problems = method.slots().get("problems", 0)
        if problems > self.slots:
            return (
                f"has {self.slots} slots for {problems} problems a step, and a slot gives one: set "
                "curriculum.slots to at least as many."
            )
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"levels": [], "proposed": {}, "turn": 0, "visited": [], "accepted": 0, "turned_down": 0}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        known, random, state = self._known(pool), stream.numpy, self.state
        if not state["levels"]:
            names = [pool[int(i)].level for i in random.integers(min(self.size, len(pool)), size=self.slots)]
            state["levels"] = [list(known).index(name) for name in names]
        state["visited"] = [(state["turn"] + i) % self.slots for i in range(count)]
        state["turn"] = (state["turn"] + count) % self.slots
        names, levels = list(known), [self.level(slot) for slot in state["visited"]]
        return [known[names[k]][int(random.integers(len(known[names[k]])))] for k in levels]

    def level(self, slot: int) -> int:
        """The difficulty that a slot's next problem has: the proposed one, if there is one."""
        proposal = self.state["proposed"].get(str(slot))
        return int(self.state["levels"][slot] + proposal[0] if proposal else self.state["levels"][slot])

    def before_update(self, batch: TokenBatch) -> None:
        if not self.adapt:
            return
        seen = dict(zip(batch.group.tolist(), solved_share(batch).tolist()))
        turned_down = {g for g, share in seen.items() if not self._judge(self.state["visited"][g], share)}
        for episode, group in zip(batch.episodes, batch.group.tolist()):
            if group in turned_down:
                episode.info["turned_down"] = True

    def _judge(self, slot: int, share: float) -> bool:
        """Settle a slot's proposal, or make one; False if a proposal was turned down."""
        state, key = self.state, str(slot)
        if key in state["proposed"]:
            direction, old = state["proposed"].pop(key)
            if not accepted(direction, old, share, self.low, self.high):
                state["turned_down"] += 1
                return False
            state["levels"][slot] += direction
            state["accepted"] += 1
            return True
        direction = wish(share, self.low, self.high)
        if direction and 0 <= state["levels"][slot] + direction < len(self.made["problems"]):
            state["proposed"][key] = [direction, share]
        return True

    def _known(self, pool: Sequence[Problem]) -> dict[str, list[Problem]]:
        """The problems that are drawn from by level, easy levels first; read once."""
        if self.made.get("pool") is not pool:
            problems = [pool[i] for i in range(min(self.size, len(pool)))]
            names = sorted({p.level for p in problems}, key=difficulty)
            self.made.update(pool=pool, problems={n: [p for p in problems if p.level == n] for n in names})
        by_level: dict[str, list[Problem]] = self.made["problems"]
        return by_level
