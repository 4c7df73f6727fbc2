"""What the loss on one batch cannot show of a method: how often it is used, how it is sampled, what it learns by.

By method, then by path: what its paper says, or, where the numbers are ours, what its docstring says. A part stands by
its name, a tuple of parts by their names.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

ONCE: Settings = {"epochs": 1, "minibatches": 1}
"""One step on every batch."""
TWICE: Settings = {"epochs": 2, "minibatches": 2}
IN_FOUR: Settings = {"epochs": 1, "minibatches": 4}
SAMPLED: Settings = {
    "experience": "groups", "experience.size": 8, "experience.temperature": 1.0, "experience.top_p": 1.0,
    "experience.top_k": 0, "problems": 32, "optimizer.schedule": "constant", "optimizer.clip_norm": 1.0,
}  # fmt: skip
"""Eight completions of each of 32 problems from the whole distribution, and AdamW at a constant rate."""
GUIDED: Settings = {
    **SAMPLED, "epochs": 5, "minibatches": 2, "experience": "guide-roll-ins", "experience.mixing": 0.8,
    "experience.guide": "saved-model", "experience.guide_temperature": 1.0, "experience.guide_top_p": 0.92,
    "experience.guide_top_k": 0, "reference": "frozen", "critic": "token-critic",
}  # fmt: skip
TWO_CRITICS: Settings = {
    "critic": "roll-out-critics", "critic.learning.epochs": 5, "critic.learning.minibatches": 2, "critic.clip": 0.2,
    "stages": ("interleaved",), "stages.0.turn": "guide-finishes", "stages.0.turn.mixing": None,
}  # fmt: skip
SHOWN: Settings = {**ONCE, "experience": "demonstrations", "optimizer.clip_norm": 1.0}
DIALOGUES: Settings = {
    **SHOWN, "problems": 64, "optimizer.schedule": "constant", "rewards": ("task-reward",), "advantages": None,
    "critic": None, "reference": None, "objective": "log-likelihood", "learners.0.gamma": 0.99,
    "learners.0.width": None, "learners.0.error": "squared", "learners.0.learning.optimizer.lr": 1e-3,
    "learners.0.learning.epochs": 1, "learners.0.learning.minibatches": 1, "learners.0.learning.every": 1,
    "learners.0.learning.warmup": 0, "learners.0.learning.order": "after",
}  # fmt: skip
"""Dialogues with rewards are cloned, and a learner beside the policy values their tokens."""
IMPLICIT: Settings = {
    "learners": ("implicit-token-q",), "learners.0.state_error": "expectile", "learners.0.state_error.tau": 0.95,
    "learners.0.learning.target.rate": 0.005, "learners.0.learning.target.every": 1,
}  # fmt: skip
PAIRS: Settings = {**ONCE, "experience": "pairs", "problems": 32}
PLAIN: Settings = {**SAMPLED, **ONCE, "reference": None, "critic": None}
ADAM_IN_CONTROL: Settings = {
    "optimizer.epsilon": 1e-5, "optimizer.clip_norm": 0.5, "optimizer.schedule": "linear",
}  # fmt: skip
NORMALISED: Settings = {"policy.observations": ("normalize-observations",), "rewards": ("normalize-rewards",)}
TRUST: Settings = {
    **ONCE, **NORMALISED, "experience.environments": 8, "experience.steps": 64, "optimizer.delta": 0.01,
    "optimizer.damping": 0.1, "optimizer.iterations": 10,
}  # fmt: skip
FITTED: Settings = {
    "critic": "fitted-value", "critic.learning.epochs": 10, "critic.learning.minibatches": 8,
    "critic.learning.optimizer.lr": 1e-3,
}  # fmt: skip

VALUES: Settings = {
    "experience.capacity": 100_000, "experience.warmup": 1_000, "experience.every": 256, "experience.updates": 0.5,
    "sampling.batch": 64, "sampling.horizon.gamma": 0.99, "critic.network.hidden": (256, 256),
    "critic.network.activation": "relu", "critic.learning.optimizer.lr": 2.3e-3,
    "critic.learning.optimizer.clip_norm": 10.0, "critic.learning.target.every": 128,
    "critic.learning.target.rate": 1.0, "critic.backup.rule.double": False,
}  # fmt: skip
CARTPOLE: Settings = {
    **VALUES, "exploration": "epsilon-greedy", "exploration.end": 0.04, "exploration.over": 8_000
}  # fmt: skip
"""What SB3's zoo has for dqn on CartPole-v1."""
OF_LOGS: Settings = {
    **{k: v for k, v in VALUES.items() if not k.startswith(("exp", "critic.backup"))}, "experience": "logged",
    "exploration": None, "critic.error": "huber", "critic.error.delta": 1.0,
}  # fmt: skip
WIDE: Settings = {
    "experience.capacity": 1_000_000, "experience.updates": 1.0, "sampling.batch": 256, "sampling.horizon.gamma": 0.99,
    "policy.network.hidden": (256, 256), "critic.network.hidden": (256, 256), "policy.network.activation": "relu",
    "critic.count": 2, "critic.error": "squared", "critic.learning.optimizer.lr": 3e-4,
    "policy.learning.optimizer.lr": 3e-4, "critic.learning.target.rate": 0.005,
}  # fmt: skip
DELAYED: Settings = {
    **WIDE, "policy.learning.every": 2, "policy.learning.target.every": 2, "critic.learning.target.every": 2,
    "policy.learning.target.rate": 0.005, "exploration.scale": 0.1, "critic.backup.rule.noise.scale": 0.2,
    "critic.backup.rule.noise.limit": 0.5, "critic.backup.reduce": "min", "actor.0.over": "first",
}  # fmt: skip
CLONED: Settings = {
    "experience": "logged", "exploration": None, "critic": None, "value": None, "transforms": (), "sampling.batch": 256,
    "policy.network.hidden": (256, 256), "policy.learning.optimizer.lr": 3e-4, "actor": ("clone",),
    "actor.0.towards": "as-recorded", "actor.0.weight": "ones", "actor.0.scale": 1.0, "order": ("policy",),
}  # fmt: skip
"""Batch and network of the methods that it is the floor of; papers of cloning have none that are usual."""
OFF_LOGS: Settings = {
    "experience": "logged", "exploration": None, "sampling.batch": 256, "sampling.horizon.gamma": 0.99,
    "policy.network.hidden": (256, 256), "critic.network.hidden": (256, 256), "critic.count": 2,
    "critic.error": "squared", "critic.learning.optimizer.lr": 3e-4, "policy.learning.optimizer.lr": 3e-4,
    "critic.learning.target.rate": 0.005,
}  # fmt: skip
SOFT_OFF_LOGS: Settings = {
    **OFF_LOGS, "transforms": (), "policy": "squashed-policy", "learners.0.start": 1.0,
    "learners.0.entropy.nats": -1.0, "policy.learning.target": None, "critic.backup.reduce": "min",
    "critic.backup.rule": "from-policy", "order": ("critic", ("policy", "temperature")),
    "actor": ("maximize-q", "entropy"), "actor.0.over": "min",
}  # fmt: skip
ENSEMBLE: Settings = {
    **SOFT_OFF_LOGS,
    "critic.backup.entropy": True,
    "critic.count": 10,
    "learners.0.learning.optimizer.lr": 3e-4,
    **{f"{k}.network.hidden": (256, 256, 256) for k in ("policy", "critic")},
}
CONSERVATIVE: Settings = {
    **SOFT_OFF_LOGS, "critic.backup.entropy": False, "critic.penalties": ("conservative-q",),
    "critic.penalties.0.actions": "drawn-actions", "critic.penalties.0.actions.count": 10,
    "critic.penalties.0.weight": 5.0, "policy.learning.optimizer.lr": 1e-4,
    "learners.0.learning.optimizer.lr": 1e-4,
}  # fmt: skip
TD3_BC: Settings = {
    **{k: v for k, v in DELAYED.items() if not k.startswith(("exp",))}, **OFF_LOGS,
    "transforms": ("standardize-observations",), "transforms.0.epsilon": 1e-3, "order": ("critic", "policy"),
    "actor": ("maximize-q", "clone"), "actor.0.scale": "mean-abs", "actor.0.scale.alpha": 2.5,
    "actor.1.weight": "ones", "actor.1.error": "squared-distance", "actor.1.scale": 1.0,
}  # fmt: skip
SOFT: Settings = {
    **WIDE, "policy": "squashed-policy", "exploration": "sampled", "policy.least": -20.0, "policy.most": 2.0,
    "learners.0.start": 1.0, "learners.0.entropy.nats": -1.0, "learners.0.learning.optimizer.lr": 3e-4,
    "policy.learning.target": None, "order": ("critic", ("policy", "temperature")), "actor.0.over": "min",
}  # fmt: skip

ASKED: Settings = {
    "learners.0.count": 3, "learners.0.network.hidden": (64, 64), "learners.0.length": 25, "learners.0.labels": 300,
    "learners.0.feedback": "comparison", "learners.0.feedback.beta": 1.0, "learners.0.feedback.slips": 0.1,
    "learners.0.teacher.beta": None, "learners.0.teacher.mistakes": 0.0, "learners.0.queries": "most-disagreed",
}  # fmt: skip
"""Three models of two layers of 64, and 100 to 400 comparisons of 25 steps, of whose answers a tenth says nothing."""

STREAM: Settings = {
    "experience": "latest", "experience.environments": 1, "sampling": "newest", "sampling.horizon.gamma": 0.99,
    "policy.observations": ("normalize-observations",), "critic.learning.target": None,
    "critic.network.activation": "leaky-relu", "critic.count": 1,
}  # fmt: skip
"""What learns from each step once."""
ASYNCHRONOUS: Settings = {
    "experience": "latest", "experience.steps": 5, "experience.environments": 1, "sampling": "newest",
    "sampling.horizon.gamma": 0.99, "exploration": "drawn-epsilon", "exploration.ends": (0.1, 0.01, 0.5),
    "exploration.shares": (0.4, 0.3, 0.3), "exploration.start": 1.0, "critic.error": "squared", "critic.count": 1,
    "critic.learning.optimizer": "rmsprop", "critic.learning.optimizer.decay": 0.99,
    "critic.learning.optimizer.schedule": "linear", "critic.learning.optimizer.schedule.floor": 0.0,
    "critic.learning.optimizer.clip_norm": None, "critic.learning.optimizer.shared": True,
    "critic.learning.optimizer.summed": True, "critic.learning.target.rate": 1.0, "rewards": (),
}  # fmt: skip
"""The value methods of the paper of A3C."""

IQL: Settings = {
    **OFF_LOGS, "transforms": (), "order": ("value", "policy", "critic"), "value.of": "min",
    "value.error": "expectile", "value.error.tau": 0.7, "value.network.hidden": (256, 256),
    "value.learning.optimizer.lr": 3e-4,
    "critic.backup.rule": "from-value", "critic.learning.every": 1, "critic.learning.target.every": 1,
    "policy.learning.every": 1, "policy.learning.target": None, "policy.learning.optimizer.schedule": "cosine",
    "policy.least": -5.0, "policy.most": 2.0, "actor": ("clone",), "actor.0.weight.beta": 3.0,
    "actor.0.weight.cap": 100.0, "actor.0.weight.over": "min", "actor.0.weight.slow": True,
    "actor.0.weight.baseline": "of-state", "actor.0.error": "likelihood",
}  # fmt: skip

DUAL_RL: Settings = {
    **{k: v for k, v in IQL.items() if k != "value.error.tau"}, "value.error": "chi-square-dual",
    "value.error.lam": 0.7, "value.network.layer_norm": True, "critic.error": "huber", "critic.error.delta": 20.0,
}  # fmt: skip

SETTINGS: dict[str, Settings] = {
    "a2c": {
        **ONCE, **NORMALISED, **ADAM_IN_CONTROL, "experience.environments": 8, "experience.steps": 8,
        "advantages.per_minibatch": False, "optimizer.lr": 3e-3,
    },
    "a2pr": {
        **TD3_BC, "actor.1.weight": "gate", "actor.1.weight.over": "first",
        "actor.1.weight.baseline": "of-state", "actor.1.towards": "augmented-guide", "actor.1.towards.detach": False,
        "value": "cautious-value", "value.error": "squared", "value.of": "min", "value.noise.scale": 0.2,
        "value.noise.limit": 0.5, "value.learning.optimizer.lr": 3e-4, "value.learning.every": 1,
        "learners": ("action-vae",), "learners.0.weight": "gate", "learners.0.latents": 2,
        "learners.0.kl": 0.5, "learners.0.network.hidden": (750, 750), "learners.0.learning.optimizer.lr": 1e-3,
        "learners.0.learning.every": 1, "order": ("critic", ("value", "action-vae"), "policy"),
    },
    "a3c": {
        "experience": "segments", "experience.steps": 5, "experience.environments": 1, "epochs": 1, "minibatches": 1,
        "optimizer": "rmsprop", "optimizer.decay": 0.99, "optimizer.summed": True, "optimizer.shared": True,
        "optimizer.schedule": "linear", "optimizer.schedule.floor": 0.0, "optimizer.clip_norm": None,
        "critic.shared": True, "policy.observations": (), "rewards": (), "regularizers.0.coefficient": 0.01,
        "optimizer.lr": 3e-3, "optimizer.epsilon": 0.1,
    },
    "n-step-q": {**ASYNCHRONOUS, "sampling.horizon": "n-step", "sampling.horizon.n": 5},
    "one-step-q": {**ASYNCHRONOUS, "sampling.horizon": "one-step", "critic.backup.rule": "argmax"},
    "one-step-sarsa": {
        **ASYNCHRONOUS, "sampling.horizon": "quintuple", "experience.ahead": 1, "critic.backup.rule": "taken",
    },
    "agro": {**PLAIN, "reference": "frozen"},
    "alpine": {
        **SHOWN, "problems": 256, "optimizer.lr": 3e-3, "optimizer.schedule": "cosine", "optimizer.schedule.floor": 0.0,
    },
    "avg": {
        **STREAM, "policy": "squashed-policy", "exploration": "sampled", "policy.network.hidden": (256, 256),
        "critic.network.hidden": (256, 256), "policy.network.activation": "leaky-relu", "policy.least": -20.0,
        "policy.network.penultimate_norm": True, "critic.network.penultimate_norm": True, "policy.most": 2.0,
        "policy.network.initializer.gain": 1.0, "policy.last.gain": 1.0, "critic.last.gain": 1.0,
        "policy.learning.optimizer.lr": 0.0063, "critic.learning.optimizer.lr": 0.0087,
        "policy.learning.optimizer.beta1": 0.0, "critic.learning.optimizer.beta1": 0.0,
        "critic.learning.optimizer.beta2": 0.999, "learners.0.start": 0.07, "learners.0.learning": None,
        "order": (("policy", "critic"),), "critic.scale": "return-scale", "rewards": (),
    },
    "awac": {
        **OFF_LOGS, "sampling.batch": 1024, "policy": "squashed-mean-policy", "policy.least": -6.0, "policy.most": 0.0,
        "policy.learning.target": None, "critic.backup.rule": "from-policy", "critic.backup.reduce": "min",
        "critic.backup.entropy": False, "learners": (), "order": ("critic", "policy"), "actor": ("clone",),
        "actor.0.weight": "softmax-advantage", "actor.0.weight.temperature": 1.0, "actor.0.weight.over": "min",
        "actor.0.weight.baseline": "of-policy", "actor.0.error": "likelihood",
    },
    "backtracking-rl": {
        **PLAIN, "problems": 128, "minibatches": 2, "rewards": ("task-reward", "format-reward"),
        "rewards.0.weight": 0.9, "rewards.1.weight": 0.1, "rewards.1.pattern": "",
    },
    "backtracking-sft-rl": {
        "runs": ("train", "train"), "runs.0.method": "sft", "runs.1.method": "backtracking-rl",
        "runs.0.set": ("optimizer.lr=2e-3",), "runs.1.set": ("problems=16",), "runs.0.steps": 300,
        "runs.1.steps": 60, "runs.1.begins": "previous", "runs.1.optimizer": "reset", "repeat": 1,
    },
    "bc": {**CLONED, "policy": "deterministic-policy", "actor.0.error": "squared-distance"},
    "d4rl": {**IQL, "value.error.tau": 0.9, "actor.0.weight.beta": 10.0},
    "cfpi": {
        **{k: v for k, v in OFF_LOGS.items() if not k.startswith("critic.count")}, "critic": "sarsa-q-functions",
        "transforms": ("next-actions", "standardize-observations"), "transforms.1.epsilon": 1e-3,
        "order": ("policy", "critic"), "policy": "mixture-policy", "policy.count": 4, "policy.least": -5.0,
        "policy.most": 2.0, **{f"{k}.network.hidden": (256, 256, 256) for k in ("policy", "critic")},
        "policy.learning.optimizer.lr": 1e-4, "critic.count": 5, "critic.backup": "own-sarsa",
        "actor": ("clone",), "actor.0.weight": "ones", "actor.0.error": "likelihood",
        "planner": "closed-form-improvement", "planner.log_tau": 0.5, "planner.beta": 1.0,
        "planner.operators": ("log-sum-exp-operator", "jensen-operator"), "planner.operators.0.least": 0.05,
    },
    "bc-discrete": {**CLONED, "policy": "softmax-policy", "actor.0.error": "likelihood"},
    "bilevel-mle": {**PLAIN, "experience.size": 5},
    "bcq": {
        **OFF_LOGS, "transforms": (), "policy": "perturbation-policy", "policy.reach": 0.05, "policy.candidates": 100,
        "sampling.batch": 100, "sampling.horizon.gamma": 0.99, "policy.network.hidden": (400, 300),
        "critic.network.hidden": (400, 300), "critic.backup.count": 10, "critic.backup.reduce.share": 0.75,
        "critic.count": 2, "learners.0.network.hidden": (750, 750), "learners.0.kl": 0.5, "learners.0.latents": 2,
        "order": ("action-vae", "critic", "policy"), "actor": ("maximize-perturbed",),
        **{f"{k}.learning.optimizer.lr": 1e-3 for k in ("policy", "critic", "learners.0")},
        **{f"{k}.learning.target.rate": 0.005 for k in ("policy", "critic")},
    },
    "bear": {
        **{k: v for k, v in WIDE.items() if not k.startswith("exp")}, "experience": "logged", "exploration": None,
        "policy.network.hidden": (400, 300), "critic.network.hidden": (400, 300), "sampling.batch": 100,
        "critic.learning.optimizer.lr": 1e-3, "policy.learning.optimizer.lr": 1e-3,
        "policy.learning.target.rate": 0.005, "critic.backup": "best-drawn", "critic.backup.count": 10,
        "critic.backup.reduce.share": 0.75, "actor.0.over": "min", "actor.1": "sampled-support", "actor.1.count": 5,
        "actor.1.width": 20.0, "learners.0.learning.optimizer.lr": 1e-3, "learners.1.limit": 0.05,
        "learners.1.learning.optimizer.lr": 1e-3, "planner.count": 10, "planner.beta": 0.0,
    },
    "bear-discrete": {
        "experience": "logged", "exploration": None, "policy": "softmax-policy", "policy.network.hidden": (400, 300),
        "critic.network.hidden": (400, 300), "critic.count": 2, "sampling.batch": 100,
        "critic.backup.rule": "from-policy", "critic.backup.reduce.share": 0.75, "actor.1": "expected-support",
        "actor.1.count": 5, "actor.1.width": 1.0, "learners.0": "behaviour-model", "learners.1.limit": 0.05,
        "planner": None,
    },
    "bve": {**OF_LOGS, "transforms": ("next-actions",), "critic.backup.rule": "taken"},
    "c51": {**CARTPOLE, "critic.head.count": 51, "critic.error": "cross-entropy"},
    "capo": {**PLAIN, "token_weights.0.direction": "adam", "token_weights.0.beta1": 0.9,
             "token_weights.0.beta2": 0.999, "token_weights.0.candidates": 16, "token_weights.0.high": 0.01},
    "chain-traversal-rl": PLAIN,
    "clip-cov": {**SAMPLED, "epochs": 1, "minibatches": 8, "token_weights.0.share": 0.005, "reference": None},
    "a-lol": {
        "runs": ("appraise", "train"), "runs.0.problems": 4000, "runs.0.validation": 400, "runs.0.passes": 10,
        "runs.0.heads": 8, "runs.0.dropout": 0.1, "runs.0.lr": 3e-3, "runs.0.temperature": 1.0,
        "runs.1.method": "a-lol-offline", "runs.1.task": "{appraised}", "runs.1.steps": 150,
        "runs.1.begins": "previous", "repeat": 1,
    },
    "a-lol-offline": {
        **ONCE, "problems": 64, "curriculum": "priority-draws", "curriculum.by": "advantage",
        "experience": "one-scored-answer", "reference": "frozen",
    },
    "brpo": {
        **PLAIN, "experience.size": 16, "filters.0.resample": True, "filters.0.rounds": 3, "filters.0.most": 0.6,
    },
    "cgpo": {
        **SAMPLED, **ONCE, "experience": "groups-and-demonstrations", "experience.size": 4, "reference": "frozen",
        "rewards.2.tasks.0.panel": ("no-repeats",), "rewards.2.tasks.0.panel.0.size": 4,
        "rewards.2.tasks.0.sees": "whole-completion", "critic": None, "rewards.2.tasks.0.kl_max": 8.0,
    },
    "cgpo-best": {
        **SAMPLED, **ONCE, "experience": "groups-and-demonstrations", "experience.size": 4, "reference": "frozen",
        "rewards.2.tasks.0.panel": ("no-repeats",), "rewards.2.tasks.0.panel.0.size": 4,
        "rewards.2.tasks.0.sees": "whole-completion", "critic": None, "rewards.2.tasks.0.kl_max": 8.0,
    },
    "cgpo-pairs": {
        **SAMPLED, **ONCE, "experience": "groups-and-demonstrations", "experience.size": 4, "reference": "frozen",
        "rewards.1.tasks.0.panel": ("no-repeats",), "rewards.1.tasks.0.panel.0.size": 4,
        "rewards.1.tasks.0.sees": "whole-completion", "critic": None, "objective.nll": 1.0,
    },
    "copg": {**PAIRS, "experience": "scored-answers", "experience.most": 8, "reference": "frozen"},
    "cal-ql": {
        **CONSERVATIVE, "transforms": ("returns-to-go",), "critic.penalties.0.floor": "recorded-returns",
    },
    "cal-ql-online": {
        **CONSERVATIVE, "critic.penalties.0.floor": "recorded-returns", "stages": ("phase", "handover"),
        "transforms": ("returns-to-go",),
        "stages.1.keep": 1.0, "stages.1.share": 0.5, "stages.1.updates": 1.0, "stages.1.set": (),
    },
    "cql": {**CONSERVATIVE, "critic.penalties.0.floor": None},
    "crr": {
        **OFF_LOGS, "sampling.batch": 100, "policy.least": -6.0, "policy.most": 0.0,
        "critic.count": 1, "critic.learning.target.rate": 1.0, "critic.learning.target.every": 100,
        "policy.learning.target.rate": 1.0, "policy.learning.target.every": 100, "critic.backup.entropy": False,
        "learners": (), "actor": ("clone",), "actor.0.weight": "exp-advantage", "actor.0.weight.beta": 1.0,
        "actor.0.weight.cap": 20.0, "actor.0.weight.slow": False, "actor.0.weight.baseline": "of-several",
        "actor.0.weight.baseline.count": 4, "actor.0.error": "likelihood",
    },
    "cql-discrete": {
        **{k: v for k, v in VALUES.items() if not k.startswith("exp")}, "exploration": None,
        "critic.backup.rule.double": True, "critic.error": "huber",
        "critic.penalties": ("conservative-q",), "critic.penalties.0.actions": "every-choice",
        "critic.penalties.0.weight": 1.0,
    },
    "discrete-bcq": {
        **{k: v for k, v in VALUES.items() if not k.startswith("exp")}, "exploration": None,
        "critic.backup.rule.double": True, "critic.head": "likely-choices", "critic.head.threshold": 0.3,
        "critic.error": "huber-of-value", "critic.error.delta": 1.0, "critic.penalties": ("said-likely",),
        "critic.penalties.0.size": 0.01,
    },
    "dapo": {**PLAIN, "filters.0.resample": True, "filters.0.rounds": 3},
    "ddpg": {
        "policy.network.hidden": (400, 300), "critic.network.hidden": (400, 300), "policy.last.limit": 3e-3,
        "critic.last.limit": 3e-3, "policy.learning.optimizer.lr": 1e-4, "critic.learning.optimizer.lr": 1e-3,
        "policy.learning.target.rate": 0.001, "critic.learning.target.rate": 0.001, "sampling.batch": 64,
        "exploration": "ornstein-uhlenbeck", "exploration.rate": 0.15, "exploration.scale": 0.2, "critic.count": 1,
        "sampling.horizon.gamma": 0.99, "experience.capacity": 1_000_000,
    },
    "deepsearch": {
        **PLAIN, "experience": "searched-groups", "experience.width": 8, "experience.depth": 64,
        "experience.exploration": 2.0, "experience.greedy": False, "experience.onward": "global-frontier",
        "experience.onward.quality": 0.4, "experience.onward.entropy": 0.0, "experience.onward.depth": 0.01,
        "experience.least": 0.1, "experience.incomplete": -1.0, "experience.replayed": 0.25,
        "curriculum": "seldom-solved", "curriculum.below": 0.25,
    },
    "derl": {**PLAIN, "rewards.0.size": 4, "rewards.0.inner": 5, "rewards.0.window": 2, "rewards.0.writer.kl": 0.001},
    "double-dqn": {**CARTPOLE, "critic.backup.rule.double": True},
    "dpo": {**PAIRS, "reference": "frozen", "objective.label_smoothing": 0.0},
    "dqn": {**CARTPOLE, "critic.error": "huber", "critic.error.delta": 1.0},
    "dr-grpo": PLAIN,
    "dueling-dqn": {**CARTPOLE, "critic.backup.rule.double": True, "critic.head": "dueling"},
    "dual-rl": DUAL_RL,
    "edac": {**ENSEMBLE, "critic.penalties": ("alike-slopes",), "critic.penalties.0.weight": 1.0},
    "dump": {**SAMPLED, **ONCE, "curriculum": "learnability-bandit", "curriculum.window": 300, "curriculum.tau": 0.1,
             "curriculum.credit.scale": None, "reference": "frozen"},
    "famo2o": {
        **OFF_LOGS, "transforms": (), "order": ("value", ("policy", "balance-model"), "critic"),
        "value.error.tau": 0.7, "critic.backup.rule": "from-value", "policy": "family-policy", "policy.least": -5.0,
        "policy.most": 2.0, "policy.learning.optimizer.lr": 3e-4, "policy.learning.optimizer.schedule": "constant",
        "actor": ("family-clone",), "actor.0.balances": "uniform-balances", "actor.0.cap": 100.0,
        "learners.0.low": 1.0, "learners.0.high": 5.0, "learners.0.entropy": -0.5, "learners.0.start": 1.0,
        "learners.0.network.hidden": (256, 256), "learners.0.learning.optimizer.lr": 3e-4,
        "stages": ("phase", "handover"), "stages.0.end": 0.5, "stages.1.keep": 1.0, "stages.1.share": None,
        "stages.1.set": ("actor.family-clone.balances=learned-balances",),
    },
    "forking-tokens": {**PLAIN, "filters.0.resample": True, "token_weights.0.complement": False,
                       "objective.high": 0.28},
    "g2rl": {**PLAIN, "rewards.1.limit": 3.0},
    "gae": {
        **TRUST, "optimizer": "trust-region", "optimizer.shrink": 0.8, "optimizer.tries": 10,
        "critic": "trust-region-value", "critic.learning.optimizer.epsilon": 0.1,
        "critic.learning.optimizer.iterations": 10,
    },
    "gdro-grpo": {
        **PLAIN, **IN_FOUR, "advantages.beta": 0.12, "advantages.limit": 3.0, "advantages.largest": 15.0,
        "advantages.by_share": True, "advantages.explore": 0.01,
        "advantages.outcomes.history": 100, "advantages.outcomes.margin": 0.03,
        "advantages.outcomes.any_of": True, "advantages.outcomes.edges": tuple(k / 10 for k in range(1, 10)),
    },
    "gorl": {
        **{k: v for k, v in TD3_BC.items() if k != "transforms.0.epsilon"},
         "transforms": ("mark-experts", "standardize-observations"), "transforms.0.episodes": 1,
        "transforms.1.epsilon": 1e-3, "order": ("critic", "guiding-network", "policy"), "actor.1.weight": "guided",
        "actor.1.towards": "as-recorded", "learners.0.network.hidden": (100,), "learners.0.most": 2.0,
        "learners.0.ahead": 3e-4, "learners.0.rows": 200, "learners.0.learning.optimizer.lr": 1e-3,
        "learners.0.learning.every": 2,
    },
    "guda": {
        **{k: v for k, v in TD3_BC.items() if k != "transforms.0.epsilon"}, "actor.1.towards": "as-recorded",
        "transforms": ("augment", "standardize-observations"), "transforms.1.epsilon": 1e-3,
        "transforms.0.symmetries": "maze-moves", "transforms.0.guide": "towards-goal",
        "transforms.0.guide.tolerance": 45.0, "transforms.0.rows": 100_000, "transforms.0.longest": 20,
    },
    "goal-conditioned-rm": {
        **PAIRS, "problems": 64, "objective.beta": 0.5, "objective.states": 16, "objective.mean_goal": False,
        "reference": None,
    },
    "asyncflow": {**PLAIN, "bound": 1},
    "roll": {
        **PLAIN, "bound": 0, "filters": ("informative-groups", "first-groups"), "filters.0.rounds": 3,
        "filters.1.extra": 4,
    },
    "gpg": {**PLAIN, "filters.0.resample": True, "filters.0.share": 0.6},
    "grpo": PLAIN,
    "h2o": {
        **SOFT_OFF_LOGS, "experience": "logs-and-replay", "exploration": "sampled", "experience.warmup": 1000,
        "experience.random": 0, "experience.updates": 1.0, "experience.keep": 1.0, "sampling": "symmetric",
        "sampling.share": 0.5, "critic": "trusting-q-functions", "critic.least": 1e-5, "critic.most": 1.0,
        "critic.backup.entropy": False, "critic.penalties": ("gap-penalty",), "critic.penalties.0.weight": 0.01,
        "critic.penalties.0.states": 10, "critic.penalties.0.most": 10.0, "critic.penalties.0.spread": 1.0,
        "learners": ("temperature", "dynamics-discriminators"), "learners.1.noise": 0.1,
        "learners.1.network.hidden": (256, 256), "learners.1.learning.optimizer.lr": 3e-4,
        "order": ("dynamics-discriminators", ("critic", "policy", "temperature")),
    },
    "hgpo": {
        **SAMPLED, **ONCE, "experience": "both-modes", "experience.size": 4, "experience.modes": None,
        "advantages.of": "group-advantage", "advantages.shorter": True, "reference": "periodic",
        "reference.every": 50, "critic": None,
    },
    "hpt": {**PLAIN, "minibatches": 2, "experience": "groups-and-demonstrations", "filters.0.gamma": 0.0},
    "hyperl": {
        **DELAYED, "critic": "hyper-q-functions", "critic.network.hidden": (256, 512, 1024), "critic.network.blocks": 2,
        "critic.dynamic": 256, "critic.first.limit": 0.05, "critic.last.limit": 0.008, "critic.reverse": False,
        "critic.learning.optimizer.lr": 5e-5,
    },
    "inpo": {
        **PLAIN, "problems": 256, "minibatches": 8, "reference": "frozen", "optimizer": "restarting-adam-w",
        "optimizer.every": 1,
    },
    "irl-llm-survey": PAIRS,
    "ipo": {**PAIRS, "reference": "frozen"},
    "iql": IQL,
    "ipl": {
        **{k: v for k, v in IQL.items() if not k.startswith(("actor", "policy.learning", "transforms"))},
        "transforms": ("scripted-preferences", "forget-rewards"), "transforms.0.pairs": 500,
        "transforms.0.length": 100, "transforms.0.wrong": 0.0, "sampling": "segment-pairs", "sampling.pairs": 8,
        "sampling.length": 64, "sampling.batch": 256, "sampling.share": 0.5, "value": "counted-value",
        "policy.learning.optimizer.lr": 3e-4, "policy.learning.optimizer.schedule": "constant",
        "critic": "inverse-q-functions", "critic.weight": 0.5, "critic.error": "squared",
        "critic.backup": "cut-bootstrap", "critic.backup.low": -198.0, "critic.backup.high": 198.0,
        "actor": ("clone",), "actor.0.weight": "counted", "actor.0.weight.of.beta": 3.0,
        "actor.0.weight.of.cap": 100.0, "actor.0.weight.of.over": "min", "actor.0.weight.of.slow": True,
        "actor.0.error": "likelihood",
    },
    "kimi-k1-5": {
        **PLAIN, **IN_FOUR, "experience": "partial-rollouts", "curriculum": "prioritised", "rewards.2.start": 0.3,
        "rewards.1.times": 5, "rewards.1.longest": 16,
        "optimizer": "restarting-adam-w", "optimizer.every": 1,
    },
    "ghpo": {
        **PLAIN, "second_look.which": "unsolved-problems", "second_look.shows.shares": (0.25, 0.5, 0.75),
        "second_look.keeps": "new-attempts", "second_look.plain": False, "advantages.scale": "group-sample-std",
    },
    "critique-grpo": {
        **SAMPLED, "epochs": 1, "minibatches": 2, "reference": None, "critic": None, "experience.size": 7,
        "second_look.which": "all-problems", "second_look.shows.critic": "verdict", "second_look.keeps": "best-joins",
        "second_look.plain": True, "advantages.scale": None,
    },
    "kl-cov": {**SAMPLED, "epochs": 1, "minibatches": 8, "regularizers.0.where.share": 0.01, "reference": None},
    "lens": PLAIN,
    "lite-ppo": {**PLAIN, "advantages.scale": "batch-std"},
    "lmc-lsvi": {
        **{k: v for k, v in VALUES.items() if "optimizer" not in k}, "exploration": "greedy", "experience.random": 0,
        "experience.warmup": 256, "sampling.batch": 32, "sampling.horizon": "n-step", "sampling.horizon.n": 3,
        "critic.backup.rule.double": True, "critic.error": "squared", "critic.learning.optimizer": "adaptive-sgld",
        "critic.learning.optimizer.lr": 1e-3, "critic.learning.optimizer.a": 1.0,
        "critic.learning.optimizer.sigma": 1e-2, "critic.learning.optimizer.clip_norm": None,
    },
    "memory-r-plus": {
        **PLAIN, "experience.size": 16, "rewards": ("task-reward", "memory-reward"), "rewards.1.exploit": 1.0,
        "rewards.1.explore": 1.0, "rewards.1.threshold": 0.5, "rewards.1.neighbours": 1, "rewards.1.responses": 100,
        "rewards.1.window": 100, "rewards.1.warmup": 50, "rewards.1.order": "score-first",
    },
    "mce": {
        **{k: v for k, v in OF_LOGS.items() if "target" not in k}, "transforms": ("returns-to-go",),
        "critic.backup": "monte-carlo", "critic.learning.target": None,
    },
    "kl-control": {
        **OF_LOGS, "critic.backup": "near-prior", "critic.backup.c": 0.1, "critic.backup.passes": 5,
        "critic.noise.rate": 0.2, "learners.0": "behaviour-model", "learners.0.learning.optimizer.lr": 1e-3,
    },
    "map-dqn": {
        **CARTPOLE, "sampling.horizon.gamma": 0.96, "critic.error": "huber", "critic.head": "channels",
        "critic.head.decomposition": "polar", "critic.head.decomposition.of": "whole",
        "critic.head.decomposition.of.limit": 1.0, "critic.head.maps": ("log-lin-map",), "critic.head.maps.0.c": 0.5,
        "critic.head.maps.0.d": 0.0, "critic.head.maps.0.least": 0.01687, "critic.head.most": 25.0,
        "critic.backup": "averaged-bootstrap", "critic.backup.share": 0.1,
    },
    "max-at-k": {**PLAIN, "epochs": 3, "reference": "frozen", "rewards.1.k": 4, "rewards.1.baseline": "none"},
    "maxrl": PLAIN,
    "mdvi": {
        **{k: v for k, v in CARTPOLE.items() if not k.endswith("double")}, "policy": "softmax-policy",
        "policy.learning.target.every": 128, "policy.learning.optimizer.lr": 2.3e-3, "critic.error": "squared",
        "critic.backup.rule.kl": 0.1, "critic.backup.rule.entropy": 0.01, "actor.0.kl": 0.1, "actor.0.entropy": 0.01,
        "order": ("critic", "policy"),
    },
    "model-task-alignment": {
        **PLAIN, "experience.size": 16, "minibatches": 2, "filters.0.resample": True, "filters.0.rounds": 2,
        "objective.low": 0.2, "objective.high": 0.28, "aggregation": "token-mean", "optimizer.weight_decay": 0.1,
        "optimizer.warmup": 0.03, "reference": None,
    },
    "mrq": {
        **{k: v for k, v in WIDE.items() if "target" not in k}, "experience.random": 10_000, "policy.tau": 10.0,
        "policy.network.hidden": (512, 512), "critic.network.hidden": (512,) * 3, "critic.network.activation": "elu",
        "critic.error": "huber", "critic.learning.optimizer": "adam-w", "critic.learning.optimizer.weight_decay": 1e-4,
        "critic.learning.optimizer.clip_norm": 20.0, "policy.learning.optimizer.weight_decay": 1e-4,
        "policy.learning.optimizer.clip_norm": None, "learners.0.learning.optimizer.weight_decay": 1e-4,
        "learners.0.learning.optimizer.clip_norm": None, "learners.0.learning.optimizer.lr": 1e-4,
        "learners.0.learning.every": 250, "learners.0.learning.epochs": 250, "critic.learning.target.every": 250,
        "policy.learning.target.every": 250, "learners.0.learning.target.every": 250,
        "critic.learning.target.rate": 1.0, "learners.0.states.hidden": (512,) * 3, "learners.0.actions": 256,
        "learners.0.pairs.hidden": (512, 512), "learners.0.joined": 512, "learners.0.sampling.length": 5,
        "learners.0.rewards.bins": 65,
        "learners.0.rewards.low": -10.0, "learners.0.rewards.high": 10.0, "learners.0.dynamics": 1.0,
        "learners.0.reward": 0.1, "learners.0.end": 0.1, "sampling": "loss-adjusted-rows", "sampling.alpha": 0.4,
        "sampling.least": 1.0, "sampling.horizon.n": 3, "exploration.scale": 0.2, "actor.0.over": "mean",
        "actor.1.weight": 1e-5, "critic.backup.rule.noise.scale": 0.2, "critic.backup.rule.noise.limit": 0.3,
        "critic.backup.reduce": "min", "order": ("targets", "encoder", "critic", "policy"),
    },
    "noisy-dqn": {
        **VALUES, "exploration": "greedy", "critic.error": "huber", "critic.noise": "factorised-noise",
        "critic.noise.sigma": 0.5,
    },
    "npg": {**TRUST, **FITTED, "optimizer": "natural-gradient"},
    "mr-rlvr": {
        "runs": ("exercises", "train", "train"), "runs.0.blanks": 4, "runs.0.masks": 0.5, "runs.0.problems": 1000,
        "runs.1.method": "grpo", "runs.1.task": "{exercises}", "runs.1.set": ("rewards=process-reward",),
        "runs.2.method": "grpo", "runs.2.task": "", "runs.1.steps": 100, "runs.2.steps": 150,
        "runs.2.begins": "previous", "runs.2.optimizer": "reset", "repeat": 1,
    },
    "nft": {**SAMPLED, "epochs": 1, "minibatches": 16, "filters.0.resample": True, "reference": None},
    "oblr-po": {**PLAIN, "optimizer": "snr-adam-w", "optimizer.memory": 0.9, "optimizer.floor": 0.05},
    "offline-rl-vlm-f": {
        **IQL, "transforms": ("scripted-preferences", "rewards-from-preferences"), "transforms.0.pairs": 500,
        "transforms.0.length": 1, "transforms.0.apart": False, "transforms.1.actions": False,
        "transforms.1.ensemble": 3, "transforms.1.hidden": (256, 256, 256), "transforms.1.lr": 3e-4,
    },
    "one-shot-rlvr": {
        **PLAIN, "experience.temperature": 0.6, "curriculum": "replicated", "curriculum.chosen": "by-variance",
        "curriculum.chosen.ranks": (1,), "curriculum.answers": (), "reference": "frozen",
        "optimizer.weight_decay": 0.01, "objective.low": 0.2, "objective.high": 0.2,
    },
    "open-rs": {
        **PLAIN, "experience.size": 6, "experience.temperature": 0.7, "optimizer.warmup": 0.1,
        "optimizer.schedule": "cosine", "optimizer.schedule.floor": 0.1,
        "curriculum": "curated", "curriculum.size": 7000, "rewards.0.length": None,
    },
    "orpo": {**PAIRS, "reference": None},
    "pacs": {**PLAIN, **IN_FOUR, "objective.threshold": 0.5, "optimizer.clip_norm": None},
    "planning-pg-vs-q": {**PLAIN, "reference": "taught", "stages.0.like": "alpine", "stages.0.end": 0.5,
                         "optimizer.lr": 5e-4},
    "policy-gradient-guide": {
        **NORMALISED, "experience.environments": 8, "experience.steps": 2048, "epochs": 10, "minibatches": 8,
        "advantages.per_minibatch": True, "policy.squash": True, "policy.network.hidden": (32,) * 4,
        "policy.network.activation": "silu", "critic.network.hidden": (256,) * 5, "critic.network.activation": "silu",
        "optimizer.lr": 3e-4, "optimizer.clip_norm": 0.5, "optimizer.schedule": "linear",
        "optimizer.schedule.floor": 0.01,
    },
    "interplay-pretrain-midtrain-rl": {
        "runs": ("train", "train", "train"), "runs.0.method": "sft", "runs.1.method": "sft", "runs.2.method": "grpo",
        "runs.1.begins": "previous", "runs.2.begins": "previous", "runs.1.steps": 160, "runs.2.steps": 24, "repeat": 1,
    },
    "interplay-rl-alone": {
        "runs": ("train", "train"), "runs.0.method": "sft", "runs.1.method": "grpo", "runs.1.begins": "previous",
        "runs.1.steps": 48, "repeat": 1,
    },
    "qwenlong-l1": {
        "runs": ("train", "train", "train"), "runs.0.method": "qwenlong-l1-phase",
        "runs.1.method": "qwenlong-l1-phase", "runs.2.method": "qwenlong-l1-phase", "runs.1.begins": "previous",
        "runs.2.begins": "previous", "runs.1.optimizer": "reset", "runs.2.optimizer": "reset", "repeat": 1,
    },
    "qwenlong-l1-phase": {
        **PLAIN, **IN_FOUR, "experience.temperature": 0.7, "curriculum": "retrospective", "curriculum.share": 0.25,
        "curriculum.cap": 8.0, "curriculum.of": "within-lengths", "filters.0.resample": True, "filters.0.rounds": 10,
        "objective.low": 0.2, "objective.high": 0.2, "rewards.0.panel.0.unit": "word", "rewards.0.pays": "accepted",
        "rewards.1.buffer": 0.1,
    },
    "qwenlong-l1-5": {
        "runs": ("train", "train", "train", "train", "train", "sce", "train"), "runs.0.method": "qwenlong-l1-5-phase",
        "runs.3.method": "sft", "runs.4.task": "facts-in-chunks", "runs.5.begins": "start", "runs.5.share": 0.2,
        "runs.6.method": "qwenlong-l1-5-phase", "runs.6.begins": "previous", "repeat": 1,
    },
    "qwenlong-l1-5-phase": {
        **PLAIN, "experience.temperature": 0.7, "curriculum": "within-lengths", "curriculum.of": "balanced-levels",
        "token_weights.0.low": 0.1, "token_weights.0.high": 0.3, "rewards.0.panel.0.unit": "word",
        "rewards.0.pays": "accepted",
    },
    "relift": {
        **SAMPLED, "epochs": 1, "minibatches": 2, "reference": None, "critic": None, "advantages.scale": None,
        "stages.0.turn.id": "sft", "stages.0.turn.optimizer.clip_norm": 0.7, "stages.0.chooser": "when-full",
        "stages.0.chooser.size": 32, "stages.0.chooser.buffer.at_most": 0.0, "stages.0.chooser.buffer.floor": 0.0,
        "stages.0.chooser.buffer.order": "newest",
    },
    "sasr": {
        **SAMPLED, **ONCE, "reference": "frozen", "critic": None, "stages.0.like": "sft", "stages.0.end": 0.3,
        "stages.1.turn.id": "sft", "stages.1.turn.optimizer": None, "stages.1.chooser.chance.gamma": 1.0,
        "stages.1.chooser.chance.window": 10, "stages.1.reference": "reset",
    },
    "poly-ppo": {
        **TWICE, "experience": "vine", "experience.size": 2, "experience.states": 2, "experience.continuations": 8,
        "experience.temperature": 1.0, "problems": 8,
    },
    "ppo": {**SAMPLED, **TWICE},
    "ppo in control": {
        **ADAM_IN_CONTROL, "experience.environments": 8, "experience.steps": 64, "advantages.per_minibatch": True,
        "optimizer.lr": 1e-3, "epochs": 10, "minibatches": 2, "policy.observations": (), "rewards": (),
    },
    "ppo-continuous": {
        **NORMALISED, **ADAM_IN_CONTROL, "experience.environments": 1, "experience.steps": 2048, "epochs": 10,
        "minibatches": 32, "advantages.per_minibatch": True, "optimizer.lr": 3e-4,
    },
    "cosmos-mcts": {
        **PAIRS, "problems": 100, "minibatches": 4, "reference": None, "experience": "pairs-by-search",
        "experience.action": 1, "experience.margin": 0.05, "experience.visits": 2, "experience.search": "uct",
        "experience.search.simulations": 60, "experience.search.branch": 4, "experience.search.depth": 6,
        "experience.search.exploration": 0.5, "experience.search.guide": "curious-value",
        "experience.search.guide.low": 0.05, "experience.search.guide.high": 0.95,
        "experience.search.guide.repeated": 1.0, "experience.search.guide.startling": 0.5,
        "experience.search.guide.dull": 0.5, "objective.weight": 0.1,
    },
    "perfrl": {
        **ONCE, "experience": "candidate-sets", "experience.size": 4, "experience.temperature": 1.0,
        "experience.decoders": ("token-beam", "token-beam"), "experience.decoders.0.width": 1,
        "experience.decoders.1.width": 4, "stages": ("phase", "phase"), "stages.0.like": "sft", "stages.0.end": 0.75,
        "stages.1.optimizer": "reset", "problems": 32, "optimizer.schedule": "constant", "optimizer.clip_norm": 1.0,
        "reference": None, "critic": None,
    },
    "pf-ppo": {
        **SAMPLED, **TWICE, "experience.size": 5, "reference": "frozen", "filters": ("rank-filter",),
        "filters.0.ranks": "best-random-ranks", "filters.0.draws": 2,
    },
    "directional-stimulus-prompting": {
        **SAMPLED, "experience": "masked-groups", "experience.mask": 0.9, "experience.every": 20, "epochs": 5,
        "minibatches": 2, "reference": "frozen", "critic": "token-critic", "rewards.1.separator": ";",
        "rewards.1.avoided": (), "rewards.2.target": 0.5,
    },
    "selective-token-generation": {
        **SAMPLED, **ONCE, "experience.size": 1, "problems": 16, "critic": "token-critic", "critic.coefficient": 2.0,
        "critic.clip": None, "aggregation": "sequence-mean", "reference": None,
    },
    "rlhf-survey": {
        **{k.replace("learners.0", "learners.1"): v for k, v in SOFT.items()},
        **ASKED,
        "order": ("replay-preferences", "critic", ("policy", "temperature")), "critic.backup": "relabelled-bootstrap",
        "critic.backup.payment": "by-models", "critic.backup.entropy": True,
    },
    "rlhf-survey-ppo": {
        **ADAM_IN_CONTROL, **ASKED, "experience.environments": 8, "experience.steps": 64, "optimizer.lr": 1e-3,
        "epochs": 10, "minibatches": 2, "rewards": ("model-rewards",), "learners.0.learning.order": "before",
    },
    "rlgf": GUIDED,
    "rlgf-aggrevated": {**GUIDED, "experience": "guide-roll-outs"},
    "rlgf-d2lols": {
        **GUIDED, **TWO_CRITICS, "stages.0.chooser": "after-steps", "stages.0.chooser.steps": 20,
    },
    "rlgf-lols": {**GUIDED, **TWO_CRITICS, "stages.0.chooser": "by-chance", "stages.0.chooser.chance.p": 0.2},
    "rlad": {
        "runs": ("worthwhile-hints", "rates", "train", "train", "train", "train", "train", "train"), "repeat": 1,
        "runs.0.problems": 3000, "runs.0.alone": 16, "runs.2.method": "sft", "runs.2.task": "{hints}",
        "runs.2.begins": "start", "runs.3.method": "rlad-solver", "runs.3.begins": "start", "runs.3.steps": 150,
        "runs.3.set": (
            "experience.writer.model={writer-0}", "curriculum.rates={rates}", "curriculum.above=0.25",
            "curriculum.most=1.0",
        ),
        "runs.4.method": "rlad-writer", "runs.4.begins": "writer-0", "runs.4.steps": 1,
        "runs.4.set": ("rewards.0.solver.model={solver-1}",), "runs.5.begins": "solver-1",
        "runs.5.set": (
            "experience.writer.model={writer-1}", "curriculum.rates={rates}", "curriculum.above=0.0",
            "curriculum.most=0.25",
        ),
        "runs.6.begins": "writer-1", "runs.7.begins": "solver-2", "runs.7.steps": 150,
    },
    "rlad-solver": {
        **ONCE, "experience": "hinted-groups", "experience.size": 8, "experience.hints": 2, "experience.bare": 0.25,
        "problems": 8, "reference": "frozen", "curriculum": "of-difficulty", "filters.0.resample": True,
        "rewards": ("task-reward", "overlong-penalty", "only-with-hint"), "critic": None,
    },
    "rlad-writer": {
        "epochs": 4, "minibatches": 16, "experience": "hint-groups", "experience.size": 4, "problems": 500,
        "rewards": ("solved-with",), "rewards.0.samples": 4, "reference": "frozen", "regularizers": (),
    },
    "rlad-writer-rft": {
        "epochs": 4, "minibatches": 16, "experience": "hint-groups", "experience.size": 4, "problems": 500,
        "rewards": ("helped-by",), "rewards.0.samples": 4, "reference": None, "filters": ("best-that-helps",),
    },
    "rlmt": {
        **ONCE, "experience": "groups", "experience.size": 8, "experience.temperature": 0.7, "problems": 64,
        "rewards": ("answer-score",), "rewards.0.sees": "after-thinking", "rewards.0.sees.delimiter": "</think>",
        "rewards.0.sees.strict": False, "reference": "frozen", "critic": None,
    },
    "rlmt-dpo": {
        "epochs": 2, "minibatches": 1, "experience": "groups", "experience.size": 8, "experience.temperature": 0.7,
        "problems": 64, "rewards": ("answer-score",), "reference": "frozen", "critic": None,
    },
    "rlmt-ppo": {
        **TWICE, "experience": "groups", "experience.size": 1, "experience.temperature": 0.7, "problems": 64,
        "rewards": ("answer-score",), "reference": None, "regularizers": (), "critic": "value-model",
        "critic.clip": 0.5, "critic.learning.epochs": 2, "critic.learning.minibatches": 2,
    },
    "rlprompt": {
        **SAMPLED, **ONCE, "experience.size": 16, "experience.top_k": 256, "problems": 1, "critic": None,
        "reference": "moving-average", "reference.rate": 1e-3, "rewards.1.epsilon": 1e-4, "rewards.2.scale": 5.0,
        "rewards.2.shift": 0.0, "aggregation": "fixed-length",
    },
    "rto": {
        **SAMPLED, "epochs": 1, "minibatches": 8, "reference": "frozen", "critic": "value-model", "critic.lead": 0,
        "critic.learning.epochs": 1, "critic.learning.minibatches": 8,
    },
    "salsa": {**SAMPLED, **TWICE, "reference": "soup", "reference.share": None},
    "text2grad": {
        **SAMPLED, "epochs": 4, "minibatches": 2, "reference": "frozen", "critic": "token-critic",
        "rewards.0.shrink": 0.0, "rewards.1.target": 6.0, "rewards.1.horizon": 10_000,
    },
    "ppo-max": {
        **SAMPLED, **IN_FOUR, "problems": 16, "reference": "frozen", "optimizer.warmup": 0.1,
        "stages": ("interleaved",),
        "stages.0.turn.id": "sft", "stages.0.turn.optimizer": None, "stages.0.chooser.chance.p": 0.2,
        "critic": "value-model", "critic.lead": 5, "critic.learning.epochs": 1, "critic.learning.minibatches": 4,
        "critic.learning.optimizer.warmup": 0.1,
    },
    "ppo-rlhf": {**SAMPLED, **TWICE, "reference": "frozen"},
    "rl-perspective-llm": {
        **SAMPLED, **TWICE, "reference": "frozen", "experience": "groups-and-demonstrations", "experience.size": 1,
        "filters": ("sampled-answers",), "rewards.0.weight": 1.0,
    },
    "prdc": {**TD3_BC, "actor.1.towards": "nearest", "actor.1.towards.beta": 2.0},
    "r3l": {
        **PLAIN, "experience": "reflect-then-retry", "experience.pivotal": True, "experience.imitate": True,
        "advantages.full": None,
    },
    "rainbow": {
        **VALUES, "critic.backup.rule.double": True, "exploration": "greedy", "critic.noise.sigma": 0.5,
        "critic.head": "dueling", "critic.head.head.count": 51, "critic.error": "cross-entropy",
        "sampling": "prioritized-rows", "sampling.alpha": 0.5, "sampling.beta": 0.4, "sampling.over": 20_000,
        "sampling.horizon": "n-step", "sampling.horizon.n": 3,
    },
    "rapid": {**PLAIN, **IN_FOUR, "problems": 64},
    "qr-dqn": {**CARTPOLE, "critic.head.count": 50, "critic.error": "quantile-huber", "critic.error.kappa": 1.0},
    "pairwise-ppo": {
        **SAMPLED, **TWICE, "critic": "anchored-value-model", "critic.lead": 5, "critic.learning.epochs": 2,
        "critic.learning.minibatches": 2, "reference": "frozen",
    },
    "pairwise-rl": {
        "runs": ("verdicts", "train", "train"), "runs.0.problems": 4000, "runs.1.method": "sft", "runs.1.steps": 250,
        "runs.1.task": "{verdicts}", "runs.1.begins": "start", "runs.2.method": "pairwise-ppo", "runs.2.steps": 100,
        "runs.2.begins": "start", "runs.2.set": ("rewards.against-anchor.judge.model={judge}",), "repeat": 1,
    },
    "r-to-q-star": {
        "runs": ("chosen-answers", "train", "train"), "runs.0.problems": 4000, "runs.1.method": "sft",
        "runs.1.steps": 100, "runs.1.task": "{chosen}", "runs.2.method": "dpo", "runs.2.steps": 60,
        "runs.2.begins": "previous", "repeat": 1,
    },
    "reward-anything": {
        **PLAIN, "experience": "shuffled-names", "rewards": ("listwise-reward",), "rewards.0.format": 0.1,
        "rewards.0.accuracy": 0.9, "rewards.0.unranked": 0.0,
    },
    "p2r": {**PLAIN, "rewards.1.comparisons": 100, "rewards.1.scale": 1.0, "rewards.1.bound": 1.0},
    "p3o": {**SAMPLED, **TWICE, "experience.size": 2, "critic": None, "reference": "frozen"},
    "rebel": {**PLAIN, "experience.size": 2, "epochs": 4, "reference": "frozen"},
    "recoil": {
        **{k: v for k, v in DUAL_RL.items() if k not in ("value.error.lam", "critic.error.delta")},
        "transforms": ("mark-experts", "forget-rewards"), "transforms.0.episodes": 1, "sampling": "expert-share",
        "sampling.share": 0.5, "value.error": "gumbel", "value.error.scale": 1.0, "value.error.most": 7.0,
        "critic.error": "squared", "critic.penalties": ("expert-contrast",), "critic.penalties.0.weight": 2.0,
    },
    "refuel": {
        **PLAIN, "experience": "relative-futures", "experience.size": 2, "experience.turn": "uniform", "epochs": 4,
        "filters": ("different-whole",), "reference": None,
    },
    "redq": {
        **SOFT, "critic.count": 10, "critic.backup.reduce.of": 2, "experience.updates": 20.0,
        "policy.learning.every": 20, "learners.0.learning.every": 20, "actor.0.over": "mean",
    },
    "rem": {
        **OF_LOGS, "critic": "mixed-q-functions", "critic.head": "several-values", "critic.head.count": 200,
        "critic.backup.rule": "best-mixture",
    },
    "reinforce": PLAIN,
    "reinforce in control": {
        **ONCE, **ADAM_IN_CONTROL, "experience.environments": 8, "experience.steps": 128, "optimizer.lr": 3e-3,
        "advantages.per_minibatch": False, "policy.observations": (), "rewards": (),
    },
    "reward-model": PAIRS,
    "rft": {**SAMPLED, "epochs": 1, "minibatches": 16, "filters.0.resample": True, "reference": None},
    "rlpd": {
        **{k: v for k, v in SOFT.items() if not k.endswith("nats")}, "critic.count": 10, "actor.0.over": "mean",
        "critic.backup.reduce.of": 2, "critic.backup.entropy": True, "critic.network.layer_norm": True,
        "policy.network.layer_norm": False, "experience": "logs-and-replay", "experience.keep": 1.0,
        "experience.updates": 20.0, "experience.random": 10_000, "policy.learning.every": 20,
        "learners.0.learning.every": 20, "learners.0.entropy.nats": -0.5, "sampling": "symmetric",
        "sampling.share": 0.5,
    },
    "rl-compositionality": {
        **PLAIN, "experience.size": 16, "problems": 16, "filters.0.resample": True, "filters.0.rounds": 10,
        "objective.low": 0.2, "objective.high": 0.2,
    },
    "o1-roadmap": {
        **PLAIN, "experience": "groups-by-search", "experience.search": "best-of", "experience.search.samples": 8,
        "experience.search.guide": "verifier", "filters": ("settled-answers",), "filters.0.resample": False,
        "filters.0.least": 1.0, "advantages": None,
    },
    "rl-compositionality-rft": {
        **PLAIN, "experience.size": 16, "problems": 16, "filters": ("right-completions",), "filters.0.resample": False,
        "filters.0.least": 1.0, "advantages": None,
    },
    "rl-knowledge-traversal": {**PLAIN, "reference": "frozen"},
    "rlanything": {
        **PLAIN, **IN_FOUR, "reference": "frozen", "curriculum": "adapted-tasks", "filters.0.low": 1 / 8,
        "filters.0.high": 7 / 8, "rewards.0.low": 0.2, "rewards.0.high": 0.8, "rewards.0.verdicts": 3,
        "rewards.0.learning.epochs": 4, "rewards.0.clip": 0.2,
    },
    "riql": {
        **OFF_LOGS, "transforms": ("standardize-observations",), "order": ("value", "policy", "critic"),
        "policy": "deterministic-policy", "policy.learning.target": None, "policy.learning.every": 1,
        "policy.learning.optimizer.schedule": "cosine", "value.of": "quantile-of-critics", "value.of.alpha": 0.25,
        "value.error": "expectile", "value.error.tau": 0.7, "value.network.hidden": (256, 256),
        "value.learning.optimizer.lr": 3e-4, "critic.count": 5, "critic.error": "bounded-influence",
        "critic.error.delta": 1.0, "critic.backup": "cut-bootstrap", "critic.backup.rule": "from-value",
        "critic.backup.low": -100.0, "critic.backup.high": 1000.0, "critic.learning.every": 1,
        "critic.learning.target.every": 1, "actor": ("clone",), "actor.0.weight.beta": 3.0,
        "actor.0.weight.cap": 100.0, "actor.0.weight.over": "quantile-of-critics", "actor.0.weight.slow": True,
        "actor.0.weight.over.alpha": 0.25, "actor.0.weight.baseline": "of-state", "actor.0.error": "squared-norm",
    },
    "remax": {**PLAIN, "experience": "groups-and-greedy", "experience.size": 1, "advantages.values": "sampled-values"},
    "rl-llm-technical-survey": {**PLAIN, "reference": "frozen"},
    "rloo": PLAIN,
    "rlpt": {
        "runs": ("train", "train"), "runs.0.method": "rlpt-text", "runs.1.method": "grpo",
        "runs.0.task": "derivations", "runs.0.set": ("task.asks=next,middle",), "runs.1.begins": "previous",
        "runs.1.optimizer": "reset", "runs.1.reference": "reset", "repeat": 1,
    },
    "rlpt-text": {
        **PLAIN, "rewards.0.panel": ("segment-prefix",), "rewards.0.panel.0.most": None,
        "rewards.0.sees": "predicted", "advantages.of": "group-advantage", "advantages.level": "middle",
        "advantages.factor": 0.5,
    },
    "rpg-kl": {**PLAIN, **IN_FOUR, "filters.0.resample": True, "objective.low": 0.2, "objective.dual": 10.0},
    "rebrac": {
        **{k: v for k, v in DELAYED.items() if not k.startswith("exp")}, **OFF_LOGS, "sampling.batch": 1024,
        "transforms": ("next-actions",), "order": ("critic", "policy"), "critic.backup.rule": "near-next",
        "critic.backup.rule.weight": 0.01, "policy.network.hidden": (256, 256, 256),
        "critic.network.hidden": (256, 256, 256), "policy.network.layer_norm": False,
        "critic.network.layer_norm": True, "critic.learning.optimizer.lr": 1e-3,
        "policy.learning.optimizer.lr": 1e-3, "actor": ("maximize-q", "clone"), "actor.0.over": "min",
        "actor.0.scale": "mean-abs", "actor.0.scale.alpha": 1.0, "actor.1.weight": "ones",
        "actor.1.error": "squared-norm", "actor.1.scale": 0.001,
    },
    "sac": SOFT,
    "sac-n": {**ENSEMBLE, "critic.penalties": ()},
    "sac-discrete": {
        **{k: v for k, v in SOFT.items() if not k.endswith(("least", "most", "nats"))}, "policy": "softmax-policy",
        "learners.0.entropy.share": 0.98,
    },
    "self-prm": {**PLAIN, "problems": 16},
    "sft": {**SHOWN, "problems": 64, "optimizer.schedule": "constant"},
    "ilql": {**DIALOGUES, **IMPLICIT, "learners.0.cql": 0.01, "learners.0.beta": 8.0},
    "lmrl-gym": {**DIALOGUES, **IMPLICIT, "learners.0.cql": 0.0, "learners.0.beta": 16.0},
    "mc-returns": {
        **DIALOGUES, "learners": ("return-token-q",), "learners.0.cql": 0.01, "learners.0.beta": 8.0,
        "learners.0.learning.target": None,
    },
    "imagined-conversations": {
        "runs": ("imagine", "train"), "runs.0.problems": 200, "runs.0.each": 40, "runs.0.drafts": 4,
        "runs.0.reflection": True, "runs.0.hurry": 0.3, "runs.0.sense": 0.6, "runs.0.errors": 0.15,
        "runs.1.method": "ilql", "runs.1.steps": 150, "runs.1.set": ("task.data={imagined}",),
    },
    "simpo": {**PAIRS, "reference": None},
    "sparkle": {
        **SAMPLED, **ONCE, "experience": "scaffolded-groups", "experience.size": 32, "experience.temperature": 0.6,
        "experience.blocks": 4, "experience.shown": (0, 1, 2, 3, 4), "reference": "frozen", "critic": None,
    },
    "sparkle-two-stages": {
        "runs": ("train", "rates", "train"), "runs.0.method": "grpo+kl-to-reference", "runs.1.begins": "previous",
        "runs.1.samples": 20, "runs.1.temperature": 1.0, "runs.2.method": "sparkle", "runs.2.begins": "previous",
        "runs.2.reference": "reset", "repeat": 1,
    },
    "spibb": {
        **OF_LOGS, "policy": "safe-policy", "critic.backup": "bootstrap", "critic.backup.rule": "rarely-as-before",
        "critic.backup.rule.threshold": 0.1, "learners.0": "behaviour-model", "learners.0.learning.optimizer.lr": 1e-3,
    },
    "spo": {
        **SAMPLED, "experience": "forks", "experience.temperature": 0.6, "experience.rollouts": 9,
        "experience.splitter": "low-probability-cuts", "experience.splitter.below": 0.9,
        "experience.splitter.every": 5, "experience.splitter.base": "prompt", "epochs": 2, "minibatches": 8,
        "advantages.values": "sampled-values", "reference": "frozen",
    },
    "spo-tree": {
        **SAMPLED, "experience": "tree", "experience.size": 6, "experience.deeper": (6, 6), "experience.cap": 30,
        "experience.temperature": 0.6, "epochs": 2, "minibatches": 8, "filters": ("nodes-with-credit",),
        "advantages.values": "sampled-values", "reference": "frozen", "problems": 16,
    },
    "rlp": {
        **SAMPLED, **ONCE, "experience": "thoughts", "experience.size": 16, "experience.temperature": 0.7,
        "experience.thought": None, "rewards": ("information-gain",), "rewards.0.baseline": "kept-reference",
        "reference": "moving-average", "reference.rate": 0.001, "regularizers": (), "critic": None,
    },
    "sft-then-grpo": {
        "runs": ("train", "train"), "runs.0.method": "sft", "runs.1.method": "grpo", "runs.0.steps": 50,
        "runs.1.steps": 100, "runs.1.begins": "previous", "runs.1.optimizer": "reset", "runs.1.reference": "reset",
        "repeat": 1,
    },
    "archer": {
        "experience": "stored-states", "experience.size": 1, "experience.states": 256,
        "experience.replay.capacity": 100_000, "problems": 64, "epochs": 1, "minibatches": 3, "critic": None,
        "reference": None, "aggregation": "fixed-length", "advantages.warmup": 20, "objective": "policy-gradient",
        "optimizer.clip_norm": 1.0, "learners": ("utterance-critic",), "learners.0.gamma": 0.95,
        "learners.0.error": "squared", "learners.0.state_error": "squared", "learners.0.learning.epochs": 50,
        "learners.0.learning.minibatches": 1, "learners.0.learning.target.rate": 0.1,
        "learners.0.learning.target.every": 1, "learners.0.learning.order": "after",
        "learners.0.network.hidden": (128, 128),
    },
    "empg": {
        **PLAIN, "advantages.of.centre": "group-mean", "advantages.factors": "entropy-factors",
        "advantages.factors.k": 1.0, "advantages.factors.ahead": 1.0, "advantages.factors.bonus": 0.05,
    },
    "loop": {
        **SAMPLED, "epochs": 2, "minibatches": 8, "problems": 40, "experience.size": 6, "reference": None,
        "critic": None, "optimizer.clip_norm": 0.1, "optimizer.weight_decay": 0.01, "filters.0.least": 0.01,
    },
    "wsrl": {
        **CONSERVATIVE, "critic.penalties.0.floor": "recorded-returns", "critic.count": 10,
        "transforms": ("returns-to-go",), "critic.backup.reduce": "random-min", "critic.backup.reduce.of": 2,
        "policy.network.layer_norm": True, "critic.network.layer_norm": True,
        "stages": ("phase", "handover"), "stages.1.keep": 0.0, "stages.1.warmup": 5000, "stages.1.updates": 4.0,
        "stages.1.share": None,
    },
    "spa-estimator": {
        **PAIRS, "experience": "explored-turns", "experience.size": 4, "experience.temperature": 1.0,
        "objective": "summed-return", "problems": 8,
    },
    "spa-rl": {
        **SAMPLED, **TWICE, "reference": "frozen", "rewards": ("task-reward", "redistribute", "kl-penalty"),
        "rewards.0.weight": 1.0, "rewards.1.alpha": 1.0, "rewards.1.beta": 0.5, "critic": "token-critic",
    },
    "tl-training": {
        **SHOWN, "problems": 64, "experience": "marked-calls", "filters": ("sound-calls",),
        "aggregation": "sequence-mean", "token_weights": ("key-tokens",), "token_weights.0.most": 9.0,
        "optimizer.schedule": "constant",
    },
    "tl-training-ppo": {
        **SAMPLED, **TWICE, "reference": "frozen", "rewards": ("call-errors", "clipped-scores", "kl-penalty"),
        "rewards.1.low": -5.0, "rewards.1.high": 5.0, "rewards.2.coefficient": 0.4, "critic": "token-critic",
        "advantages.gamma": 1.0, "advantages.lam": 0.95, "advantages.standardize": False,
    },
    "toolrl": {
        **PLAIN, "experience.size": 4, "rewards": ("call-format", "call-matches"), "rewards.0.scale": 1.0,
        "rewards.1.scale": 3.0, "rewards.0.later": None, "rewards.1.later": None,
    },
    "tulu-3": {
        "runs": ("decontaminated", "train", "rated-pairs", "train", "train", "train"), "repeat": 1,
        "runs.0.size": 8, "runs.0.share": 0.5, "runs.0.most": 0.02, "runs.0.against": ("test",), "runs.0.unit": "word",
        "runs.1.method": "sft", "runs.1.task": "{clean}",
        "runs.1.set": ("optimizer.schedule=linear", "optimizer.warmup=0.03", "optimizer.lr=1e-3"),
        "runs.2.samples": 3, "runs.2.worked": True, "runs.2.temperature": 1.0, "runs.2.begins": "previous",
        "runs.3.method": "tulu-3-dpo", "runs.3.task": "{pairs}", "runs.3.begins": "previous",
        "runs.4.method": "reward-model", "runs.4.task": "{pairs}", "runs.4.begins": "sft",
        "runs.5.method": "tulu-3-rlvr", "runs.5.task": "", "runs.5.begins": "dpo",
        "runs.5.set": ("critic.model={rm}",), "runs.5.optimizer": "reset", "runs.5.reference": "reset",
    },
    "tulu-3-dpo": {
        **PAIRS, "reference": "frozen", "optimizer.warmup": 0.1, "optimizer.schedule": "linear",
        "objective.link.label_smoothing": 0.0,
    },
    "tulu-3-rlvr": {
        **SAMPLED, "epochs": 4, "minibatches": 1, "reference": "frozen", "critic": "value-model", "critic.lead": 0,
        "critic.clip": None, "critic.learning.epochs": 4, "critic.learning.minibatches": 1, "regularizers": (),
    },
    "ssp": {
        **{k: v for k, v in PLAIN.items() if k not in ("experience", "reference")},
        "experience": "self-play", "experience.size": 5, "experience.pool.emptied": 10, "experience.pool.age": None,
        "experience.rules": ("long-enough", "short-enough", "answer-untold", "looked-up"),
        "experience.rules.0.words": 10, "experience.rules.1.characters": 1000, "experience.rules.3.queries": 2,
        "experience.noise": 4,
        "experience.verified": True, "rewards": ("search-answer",), "reference": "frozen",
        "regularizers": ("kl-to-reference",), "regularizers.0.coefficient": 0.01, "regularizers.0.estimator": "k3",
        "roles": ("plays", "plays"), "roles.0.player": "proposer", "roles.0.rewards": ("unsolved",),
        "roles.0.advantages": "group-advantage", "roles.0.advantages.centre": None, "roles.0.advantages.scale": None,
        "roles.0.trained": True, "roles.0.apart": False, "roles.0.weights": None, "roles.1.player": "solver",
        "roles.1.apart": True, "roles.1.trained": True, "roles.1.weights": None, "roles.1.rewards": None,
    },
    "ssrl": {
        **PLAIN, "experience.size": 5, "rewards": ("task-reward", "search-format", "own-information"),
        "rewards.0.weight": 0.9, "rewards.1.scale": 0.1, "regularizers": ("kl-to-reference",),
        "regularizers.0.coefficient": 0.001, "regularizers.0.estimator": "k3", "reference": "frozen",
    },
    "supo": {
        **PLAIN, "experience.view": "summary-at", "experience.view.limit": 64, "experience.view.most": 4,
        "experience.view.tokens": 24, "filters": ("answered-episodes",),
    },
    "swe-rebench": {**SHOWN, "problems": 32, "optimizer.lr": 2e-3},
    "swe-rl": {
        **PLAIN, "experience.size": 16, "rewards": ("patch-similarity",), "rewards.0.malformed": 1.0,
        "regularizers": ("kl-to-reference",), "regularizers.0.coefficient": 0.001, "regularizers.0.estimator": "k3",
        "reference": "frozen",
    },
    "t-ppo": {
        **SAMPLED, **TWICE, "experience": "successive-batches", "experience.cap": 16, "reference": None,
        "critic.lead": 5, "critic.learning.epochs": 2, "critic.learning.minibatches": 2,
        "critic.learning.order": "after", "critic.learning.warmup": 0, "critic.learning.every": 1,
    },
    "t1": {
        **PLAIN, "experience.size": 16, "experience.temperature": 1.2, "experience.top_p": 0.95, "problems": 16,
        "rewards.1.times": 5, "rewards.1.longest": 16,
        "reference": "moving-average", "reference.rate": 0.01,
    },
    "ss-orl": {
        **{k: v for k, v in TD3_BC.items() if k != "transforms.0.epsilon"}, "actor.1.towards": "as-recorded",
        "transforms": ("label-actions", "standardize-observations"), "transforms.1.epsilon": 1e-3,
        "transforms.0.past": 1, "transforms.0.ensemble": 1, "transforms.0.hidden": (1024, 1024),
        "transforms.0.dropout": 0.1, "transforms.0.lr": 1e-4, "transforms.0.batch": 1024,
        "transforms.0.updates": 100,
    },
    "stream-ac": {
        **STREAM, "policy": "stochastic-policy", "exploration": "sampled", "critic": "v-functions",
        "policy.network.hidden": (128, 128), "critic.network.hidden": (128, 128), "policy.network.layer_norm": True,
        "critic.network.layer_norm": True, "policy.network.affine": False, "critic.network.affine": False,
        "policy.network.initializer.share": 0.9, "critic.network.initializer.share": 0.9, "policy.last.share": 0.9,
        "critic.last.share": 0.9, "rewards": ("normalize-rewards",), "rewards.0.gamma": 0.99,
        "policy.learning.optimizer": "obgd", "policy.learning.optimizer.lr": 1.0,
        "policy.learning.optimizer.lam": 0.8, "policy.learning.optimizer.kappa": 3.0,
        "critic.learning.optimizer": "obgd", "critic.learning.optimizer.lr": 1.0,
        "critic.learning.optimizer.lam": 0.8, "critic.learning.optimizer.kappa": 2.0,
        "critic.backup.rule": "from-value", "actor": ("likelihood-ratio", "signed-entropy"), "actor.1.weight": 0.01,
        "order": (("policy", "critic"),),
    },
    "stream-x": {
        **STREAM, "critic.network.hidden": (128, 128), "critic.network.layer_norm": True,
        "critic.network.affine": False,
        "critic.network.initializer.share": 0.9, "critic.last.share": 0.9, "exploration.start": 1.0,
        "exploration.end": 0.01, "rewards": ("normalize-rewards",), "rewards.0.gamma": 0.99,
        "critic.learning.optimizer": "obgd", "critic.learning.optimizer.lr": 1.0, "critic.learning.optimizer.lam": 0.8,
        "critic.learning.optimizer.kappa": 2.0, "critic.backup.rule": "argmax", "critic.backup.rule.double": False,
    },
    "td3": DELAYED,
    "td3-bc": {**TD3_BC, "actor.1.towards": "as-recorded"},
    "traj-weighting": {
        **IQL, "sampling": "trajectory-weighted", "sampling.by": "episode-advantage", "sampling.temperature": 0.1,
    },
    "tq-saco": {
        **{k: v for k, v in OF_LOGS.items() if "clip" not in k}, "sampling.batch": 128, "sampling.horizon.gamma": 0.95,
        "critic.network.hidden": (256, 256, 256), "critic.learning.optimizer.lr": 1e-4,
        "critic.learning.target.every": 100, "critic.learning.optimizer.clip_norm": None,
        "critic.backup.rule.double": False,
    },
    "trpo": {**TRUST, **FITTED, "optimizer": "trust-region", "optimizer.shrink": 0.8, "optimizer.tries": 10},
    "v-mpo": {
        **NORMALISED, **ADAM_IN_CONTROL, "experience.environments": 8, "experience.steps": 64, "epochs": 10,
        "minibatches": 2, "optimizer.lr": 3e-3, "objective.temperature": 1.0, "regularizers.0.alpha": 1.0,
        "regularizers.0.alpha_choices": 5.0,
    },
    "words-as-beacons": {
        "experience.environments": 16, "experience.steps": 128, "epochs": 4, "minibatches": 8,
        "advantages.per_minibatch": True, "policy.observations": ("subgoal-triple",), "critic.shared": True,
        "policy.network.image.channels": (32, 32, 32), "policy.network.image.kernels": (3, 3, 3),
        "policy.network.image.strides": (2, 2, 2), "policy.network.image.padding": 1,
        "policy.network.image.activation": "elu", "policy.network.joint.hidden": (256,), "optimizer.lr": 1e-4,
        "optimizer.epsilon": 1e-5, "optimizer.clip_norm": 0.5, "optimizer.schedule": "constant",
    },
}  # fmt: skip
"""By method; `in control` for those that are another composition there."""
