"""What critics learn: the reward, and what the slow copy says of what is done next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from etude.core.critic_slots import Backup, Following, QHead, Reduction, Rule, TargetNoise, entropy_objection
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative, Positive
from etude.core.log_slots import has_column
from etude.core.replay_slots import Choice, ReplayReading
from etude.objectives.reductions import Min

if TYPE_CHECKING:
    from etude.core.method import Method


class ClippedNoise(TargetNoise):
    """Target policy smoothing: a + clip(scale n, -limit, limit), in a Box kept within it (arXiv:1802.09477, eq. 14).

    Shapes: actions [P, N, A] -> [P, N, A], in units.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(normal=lambda purpose, like: torch.full_like(like, 9.0), moved=lambda a, n: (a + n).clamp(-1, 1))
    >>> ClippedNoise(scale=0.2, limit=0.5)(torch.tensor([[[0.1], [0.8]]]), read).flatten().tolist()
    [0.6000000238418579, 1.0]
    """

    scale: NonNegative = 0.2
    limit: NonNegative = 0.5

    def __call__(self, actions: Tensor, read: ReplayReading) -> Tensor:
        noise = (read.normal("smoothing", actions) * self.scale).clamp(-self.limit, self.limit)
        return read.moved(actions, noise)


class FromPolicy(Rule):
    """What the policy would do next; its slow copy where it has one.

    Args:
        noise: what is added to that.

    Shapes: outputs [P, M, N, K], log-probabilities [P, N].

    >>> import torch
    >>> class Rows:
    ...     def policy(self, at, copy): return Choice(torch.full((1, 2, 1), 0.5), None)
    ...     def outputs(self, at, actions, copy): return actions[:, None] * 10
    >>> FromPolicy()(Rows()).outputs.flatten().tolist()
    [5.0, 5.0]
    """

    noise: TargetNoise | None = None

    def __call__(self, read: ReplayReading) -> Following:
        choice = read.policy("next", copy=True)
        if choice.chances is not None and self.noise is not None:
            raise ConfigError("FromPolicy adds noise to actions, and the policy's are choices: leave out its noise.")
        if choice.chances is not None:
            return Following(read.outputs("next", copy=True), choice.logp, choice.chances)
        return self.of_actions(choice.actions if self.noise is None else self.noise(choice.actions, read), choice, read)

    def of_actions(self, actions: Tensor, choice: Choice, read: ReplayReading) -> Following:
        """What actions [P, N, A] are worth that the policy chose, noise included."""
        return Following(read.outputs("next", actions, copy=True), choice.logp)


class NearNext(FromPolicy):
    """What the policy would do next, worth less the further that is from what was done next (arXiv:2305.09836, eq. 5).

        Q'(s', a') - weight sum_k (a'_k - next_a_k)^2,   in units, noise included

    Nothing is taken off where nobody saw anything done next (NaN).

    Args:
        weight: beta of the critic.

    Shapes: outputs [P, M, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> batch = Rows(offers={"next_actions": torch.tensor([[[0.0, 1.5], [torch.nan, torch.nan]]])})
    >>> read = Rows(policy=lambda at, copy: Choice(torch.full((1, 2, 2), 0.5), None), batch=batch,
    ...             outputs=lambda at, actions, copy: torch.full((1, 1, 2, 1), 10.0))
    >>> NearNext(weight=2.0)(read).outputs.flatten().tolist()
    [7.5, 10.0]
    """

    weight: NonNegative = 0.01

    def objection(self, method: Method) -> str | None:
        policy, critic = method.slots()["policy"], method.slots()["critic"]
        if policy is not None and policy.of_choices:
            return f"goes by distances between numbers, and {type(policy).__name__} makes choices: set another rule."
        if critic is not None and critic.head.says != "numbers":
            return f"takes something off a value, and the critic says {critic.head.says}: set critic.head=scalar."
        return _next_unsaid(method)

    def of_actions(self, actions: Tensor, choice: Choice, read: ReplayReading) -> Following:
        outputs, logp, _ = super().of_actions(actions, choice, read)
        away = (actions - read.batch.offers["next_actions"]).square().sum(-1).nan_to_num(0.0)
        return Following(outputs - (self.weight * away)[:, None, :, None], logp)


class Argmax(Rule):
    """The choice that is worth most: by the slow copy's own word, or `double`, by the network's (arXiv:1509.06461).

    Shapes: outputs [P, M, N, K].

    >>> import torch
    >>> class Rows:
    ...     def outputs(self, at, copy=False):
    ...         return torch.tensor([[1.0, 2.0], [4.0, 3.0]][copy])[None, None, None, :, None]
    ...     def values(self, outputs): return outputs.squeeze(-1)
    >>> [Argmax(double=d)(Rows()).outputs.item() for d in (False, True)]
    [4.0, 3.0]
    """

    double: bool = False

    def strays(self, read: ReplayReading) -> Tensor:
        """Where another choice was made than the best (Watkins's Q(lambda))."""
        best = read.values(read.outputs("here")).mean(1).argmax(-1)
        return best != read.batch.actions[..., 0]

    def __call__(self, read: ReplayReading) -> Following:
        slow = read.outputs("next", copy=True)
        asked = read.outputs("next") if self.double else slow
        best = read.values(asked).argmax(-1, keepdim=True).unsqueeze(-1)
        return Following(slow.gather(-2, best.expand(*best.shape[:-1], slow.size(-1))).squeeze(-2))


class SoftMax(Rule):
    """A choice by chances that grow with its worth, softmax(Q' / temperature), all of them seen (arXiv:1812.00456).

    By the slow copies' own word, the mean over several critics. At a temperature near 0 it is `argmax`, far above the
    values their mean over the choices.

    Shapes: outputs [P, M, N, A, K], log-probabilities [P, N], chances [P, N, A].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> said = torch.tensor([0.0, 2.0 * torch.tensor(3.0).log()]).view(1, 1, 1, 2, 1)
    >>> read = Rows(outputs=lambda at, copy: said, values=lambda x: x.squeeze(-1))
    >>> [round(x, 4) for x in SoftMax(temperature=2.0)(read).chances.flatten().tolist()]
    [0.25, 0.75]
    """

    temperature: Positive = 1.0

    def objection(self, method: Method) -> str | None:
        policy, critic = method.slots()["policy"], method.slots()["critic"]
        if policy is not None and not policy.made_of_critic:
            return "goes by what the critic says of every choice, and the policy has its own: set rule=from-policy."
        if critic is not None and (critic.head.says != "numbers" or critic.head.size > 1):
            said = f"{critic.head.size} {critic.head.says}"
            return f"takes means of values, and the critic says {said} of each: set critic.head=scalar."
        return None

    def __call__(self, read: ReplayReading) -> Following:
        outputs = read.outputs("next", copy=True)
        logs = (read.values(outputs).mean(1) / self.temperature).log_softmax(-1)
        chances = logs.exp()
        return Following(outputs, (chances * logs).sum(-1), chances)


class Taken(Rule):
    """What was done next: Sarsa. Where nothing was, since an episode was truncated there, the choice worth most.

    Shapes: outputs [P, M, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> outputs = torch.tensor([[1.0, 2.0], [4.0, 3.0]])[None, None, ..., None]
    >>> batch = Rows(offers={"next_actions": torch.tensor([[[0.0], [torch.nan]]])})
    >>> read = Rows(outputs=lambda at, copy: outputs, values=lambda x: x.squeeze(-1), batch=batch)
    >>> Taken()(read).outputs.flatten().tolist()
    [1.0, 4.0]
    """

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and not policy.made_of_critic:
            return "asks for the choice that was made next, and policies of their own have others: set another rule."
        return _next_unsaid(method)

    def __call__(self, read: ReplayReading) -> Following:
        slow = read.outputs("next", copy=True)
        taken, best = read.batch.offers["next_actions"][..., 0], read.values(slow).mean(1).argmax(-1)
        chosen = taken.nan_to_num(0.0).long().where(~taken.isnan(), best)[:, None, :, None, None]
        return Following(slow.gather(-2, chosen.expand(*slow.shape[:3], 1, slow.shape[-1])).squeeze(-2))


class FromValue(Rule):
    """Whatever is done next: what the state there is worth is said by the method's `value`, or a critic of states.

    Shapes: outputs [P, M, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> FromValue()(Rows(state_outputs=lambda at, copy: torch.full((1, 1, 2, 1), 3.0))).outputs.flatten().tolist()
    [3.0, 3.0]
    """

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and not critic.of_states and method.slots()["value"] is None:
            return (
                "asks what states are worth, and the critic says it of actions: set value=value-function, or "
                "critic=v-functions."
            )
        return None

    def __call__(self, read: ReplayReading) -> Following:
        return Following(read.state_outputs("next", copy=True))


class Bootstrap(Backup):
    """y = r + discount (Q' - temperature log pi), Q' being what the critics' slow copies say of what `rule` does next.

    Args:
        rule: what is done next.
        reduce: one value from those of several critics.
        entropy: whether the policy's entropy counts as reward; the temperature is what a learner offers.

    Shapes: [P, M, N, K] -> [P, N, K].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> class Said(Rule):
    ...     def __call__(self, read): return Following(torch.tensor([[[[3.0]], [[2.0]]]]), torch.tensor([[-1.0]]))
    >>> from etude.learners.heads import Scalar
    >>> read = Rows(batch=Rows(rewards=torch.tensor([[1.0]]), discounts=torch.tensor([[0.5]])),
    ...             offered=lambda name: torch.tensor([0.2]))
    >>> [Bootstrap(Said(), Min(), entropy=e).target(read, Scalar()).item() for e in (False, True)]
    [2.0, 2.0999999046325684]
    """

    rule: Rule = FromPolicy()
    reduce: Reduction = Min()
    entropy: bool = False

    def objection(self, method: Method) -> str | None:
        return entropy_objection(method) if self.entropy else None

    def strays(self, read: ReplayReading) -> Tensor | None:
        return self.rule.strays(read)

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        batch = read.batch
        assert batch.discounts is not None
        return head.target(batch.rewards, batch.discounts, self.following(read))

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        if not self.entropy:
            return largest
        logp = read.policy("here").logp
        assert logp is not None
        return largest + read.offered("temperature") * logp.abs().amax(1)

    def following(self, read: ReplayReading) -> Tensor:
        """What is said of what follows, [P, N, K]."""
        following = self.rule(read)
        outputs = self.reduce(following.outputs, read)
        if following.chances is not None:
            outputs = (following.chances[..., None] * outputs).sum(-2)
        if self.entropy:
            assert following.logp is not None
            outputs = outputs - (read.offered("temperature")[:, None] * following.logp)[..., None]
        return outputs


class CutBootstrap(Bootstrap):
    """y = r + discount V(s') and the like, cut at `low` and `high`; the share that was cut is noted as `critic_cut`.

    Shapes: [P, M, N, K] -> [P, N, K]. Raises: ConfigError unless low < high.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> from etude.learners.heads import Scalar
    >>> batch = Rows(rewards=torch.tensor([[1.0, -900.0]]), discounts=torch.ones(1, 2))
    >>> read = Rows(batch=batch, note=lambda name, values: print(name, values.tolist()),
    ...             state_outputs=lambda at, copy: torch.full((1, 1, 2, 1), 3.0))
    >>> CutBootstrap(FromValue()).target(read, Scalar()).flatten().tolist()
    cut [0.5]
    [4.0, -100.0]
    """

    low: float = -100.0
    high: float = 1000.0

    def check(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"CutBootstrap.low must be below high, got {self.low} and {self.high}.")

    def objection(self, method: Method) -> str | None:
        critic = method.slots()["critic"]
        if critic is not None and critic.head.says != "numbers":
            return f"cuts numbers, and the critic says {critic.head.says}: set critic.head=scalar."
        return super().objection(method)

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        whole = super().target(read, head)
        found = whole.clamp(self.low, self.high)
        read.note("cut", (found != whole).to(whole.dtype).mean((1, 2)))
        return found


def _next_unsaid(method: Method) -> str | None:
    """Why rows do not say what was done next; None: they do."""
    sampling = method.slots()["sampling"]
    if sampling is None or sampling.horizon.beyond:
        return None
    if sampling.horizon.length > 1:
        return "asks what was done after one step: set sampling.horizon=one-step."
    if not has_column(method, "next_actions"):
        return "asks what was done next, which no row says: set transforms=next-actions, or sampling.horizon=quintuple."
    return None
