"""Policy gradient against Q-learning for path planning (arXiv:2509.22613).

Changes REINFORCE in five places: 1. it starts from supervised learning on paths (`alpine`, the first half of the
steps); 2. a completion is paid 1 if it is a valid path to the target, else 0; 3. no baseline; 4. token losses are
summed; 5. optionally it is held near the supervised policy `base`, by lambda in the token's own credit:

    loss = -sum_m (R(u) - lambda sg[log(pi(u_{m+1}) / base(u_{m+1}))]) log pi(u_{m+1}),

whose gradient is that of lambda times the k2 estimate of the divergence, so that no new part is needed.

With lambda = 0 this is supervised learning on the policy's own right answers: once every pair is solved nothing brings
other paths back, and diversity keeps falling. `q_learning`, the other composition of this file, has the policy's logits
as Q-values instead,

    loss = sum_m (z_m[u_{m+1}] - r(u, m) - sg[max_k z_{m+1}[k]])^2,    0 instead of the maximum after the target,

with r(u, m) = 1[u_{m+1} = target] - 1[(u_m, u_{m+1}) is no edge], or, of 'outcome' reward, 1 at the end of a valid path
and else 0. Every right step then has the value 1, none is preferred; with outcome rewards a value says only whether the
target can still be reached, by whatever step, and the policy forgets the edges.

A language model also has to end its answer, of which the paper's equations say nothing: here the end token after the
target is paid like the step to the target, and anywhere else it is no edge.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from etude.advantages.returns import RewardToGo
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.part import Need
from etude.core.slots import Context, Reference, TokenObjective, TokenReward
from etude.methods.foundation.reinforce import reinforce
from etude.optimizers.adam import AdamW
from etude.regularizers.kl import KLToReference
from etude.stages.phases import Phase


class Taught(Reference):
    """The policy as it was when it last learned from nothing but written answers.

    Shapes: reads sampled [B].

    >>> from types import SimpleNamespace as Rows
    >>> part = Taught().bind()
    >>> part.after_update(Rows(sampled=torch.tensor([False, False])))
    >>> part.refresh(step=3)
    1.0
    """

    def initial_state(self) -> dict[str, Any]:
        return {"teaching": False}

    def after_update(self, batch: TokenBatch) -> None:
        self.state["teaching"] = not bool(batch.sampled.any())

    def refresh(self, step: int) -> float:
        return float(self.state["teaching"])


class PathSteps(TokenReward):
    """Rewards of the steps of `paths`, token by token; marks as `final` those after which nothing follows.

    'process': r_t = 1[token t is the target] - 1[no edge leads to token t from the one before]. 'outcome': 1 on the
    target of a valid path, else 0. The end token that follows the target is paid like it; elsewhere it is no edge. From
    the first time at the target on, every token is final.

    Shapes: [B, T], 0 outside the action mask. Tokens that are no node of the graph are reached by no edge.

    From a to the target c there is an edge by way of b only; tokens 0, 1, 2 are a, b, c:

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem
    >>> problem = Problem("path/1", "a", "c", info={"moves": {"a": ["b"], "b": ["c"], "c": []}})
    >>> rows = Run(tokens=torch.tensor([[0, 1, 2], [0, 1, 1]]), attention_mask=torch.ones(2, 3, dtype=torch.bool))
    >>> rows.action_mask, rows.rewards = torch.tensor([[False, True, True]] * 2), torch.zeros(2, 3)
    >>> rows.episodes = [Run(problem=problem)] * 2
    >>> policy = Run(decode=lambda tokens: "abc"[tokens[0]], end_ids=[9])
    >>> PathSteps(kind="process").shape_in(rows, Run(policy=policy)).int().tolist()
    [[0, 0, 1], [0, 0, -1]]
    """

    kind: Literal["process", "outcome"] = "process"

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        node, _, target = self._nodes(batch, context)
        there = (node == target[:, None]) & batch.action_mask
        return batch.replace(final=(there.cumsum(1) > 0) & batch.action_mask)

    def shape_in(self, batch: TokenBatch, context: Context) -> Tensor:
        node, edges, target = self._nodes(batch, context)
        before = pad(node[:, :-1], (1, 0), value=-1)
        there = (node == target[:, None]) & batch.action_mask
        ends = batch.action_mask & (node == -2) & (before == target[:, None])
        arrived = there | ends
        if self.kind == "outcome":
            assert batch.solved is not None
            return (arrived & batch.solved[:, None]).to(batch.rewards)
        legal = ends | edges[before, node]
        return (arrived.to(batch.rewards) - (~legal).to(batch.rewards)) * batch.action_mask

    def _nodes(self, batch: TokenBatch, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Node numbers [B, T] (-1 for no node, -2 for an end), edges [n + 2, n + 2] of them, targets [B]."""
        first = batch.episodes[0].problem
        if "moves" not in first.info:
            task = type(context.task).__name__
            raise ConfigError(f"PathSteps pays for steps along the edges of a graph, and {task} has none: use paths.")
        names = {name: i for i, name in enumerate(first.info["moves"])}
        used, place = torch.unique(batch.tokens, return_inverse=True)
        spelled = [names.get(context.policy.decode([token]), -1) for token in used.tolist()]
        ends = torch.isin(used, used.new_tensor(context.policy.end_ids))
        node = torch.where(ends, -2, used.new_tensor(spelled))[place]
        node = torch.where(batch.attention_mask, node, -1)
        edges = torch.zeros(len(names) + 2, len(names) + 2, dtype=torch.bool, device=node.device)
        for name, following in first.info["moves"].items():
            edges[names[name], [names[k] for k in following]] = True
        target = node.new_tensor([names[e.problem.answer] for e in batch.episodes])
        return node, edges, target


class LogitsAsValues(TokenObjective):
    """loss[b,t] = (z_t[y_t] - r_t - sg[max_k z_{t+1}[k]])^2: one-step Q-learning, the logits being the Q-values.

    t + 1 is the next token of the row that the policy chose. Nothing is added after the last one, nor after a token
    that a reward marked as final (`final` [B, T]).

    Shapes: z [B, T, V]; returns [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(tokens=torch.tensor([[0, 1]]), action_mask=torch.ones(1, 2, dtype=torch.bool), final=None)
    >>> rows.rewards = torch.tensor([[0.0, 1.0]])
    >>> policy = TokenLogProbs(torch.zeros(1, 2), logits=torch.tensor([[[1.0, 2.0], [0.0, 3.0]]]))
    >>> LogitsAsValues()(rows, policy).tolist()  # (1 - 0 - 3)^2, (3 - 1)^2
    [[4.0, 4.0]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS})

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return (self._value(batch, policy) - q_targets(batch, policy)) ** 2

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`value`: Q-value of the chosen token. `target`: what it is moved to."""
        return {"value": self._value(batch, policy).detach(), "target": q_targets(batch, policy)}

    def _value(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert policy.logits is not None
        return policy.logits.gather(-1, batch.tokens[..., None])[..., 0]


@torch.no_grad()
def q_targets(batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
    """r_t + max_k z_{t+1}[k] [B, T], without gradient."""
    assert policy.logits is not None
    width = batch.tokens.shape[1]
    places = torch.arange(width, device=batch.tokens.device).expand_as(batch.tokens)
    ahead = torch.where(batch.action_mask, places, width).flip(1).cummin(1).values.flip(1)  # first action from t on
    following = pad(ahead[:, 1:], (0, 1), value=width)
    best = pad(policy.logits.amax(-1), (0, 1)).gather(1, following)
    final = batch.final
    return batch.rewards + (best if final is None else torch.where(final, 0.0, best))


planning_pg_vs_q = reinforce.replace(
    id="planning-pg-vs-q",
    title="Benefits and Pitfalls of Reinforcement Learning for Language Model Planning: A Theoretical Perspective",
    paper="arXiv:2509.22613",
    row="theory",
    stages=(Phase(like="alpine", end=0.5), Phase()),
    advantages=RewardToGo(gamma=1.0, baseline=None),
    aggregation="fixed-length",
    regularizers=(KLToReference(coefficient=1e-3, estimator="k2"),),
    reference=Taught(),
    optimizer=AdamW(lr=5e-4),
    claim=Claim(
        statement="After supervised learning on some pairs, policy gradient without KL goes on losing paths when it "
        "solves every training pair; Q-learning with process rewards solves more of the other pairs, and with outcome "
        "rewards it forgets what it knew.",
        task="paths",
        measures=(
            Measure(name="paths, policy gradient", direction="lower", smallest=0.1, bounds=(0.0, None)),
            Measure(name="test accuracy, Q", smallest=0.05),
            Measure(name="test accuracy, Q of outcomes", direction="lower", smallest=0.05),
            Measure(name="training accuracy, policy gradient", role="mechanism", minimum=0.98, against=0.95),
            Measure(name="paths, with KL", role="mechanism", smallest=0.1, bounds=(0.0, None)),
            Measure(name="paths, Q", role="mechanism", smallest=0.1, bounds=(0.0, None)),
            Measure(name="test accuracy, Q off policy", role="mechanism", smallest=0.05),
            Measure(name="test accuracy, more supervised steps", role="mechanism", direction="equal", smallest=0.05),
        ),
        learned_on="training accuracy, policy gradient",
        paper_effect="continual supervised learning flat; policy gradient loses paths after 100 % training accuracy; Q "
        "of process rewards accurate and diverse, on and off policy; Q of outcomes near zero",
    ),
)

q_learning = planning_pg_vs_q.replace(
    id="planning-q-learning",
    title=planning_pg_vs_q.title,
    paper=planning_pg_vs_q.paper,
    row="theory",
    rewards=(PathSteps(kind="process"),),
    advantages=None,
    objective=LogitsAsValues(),
    aggregation="token-mean",
    regularizers=(),
    reference=None,
)
