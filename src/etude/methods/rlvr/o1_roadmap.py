"""A roadmap to o1: search with the policy, learn what the search found, and search again (arXiv:2412.14135).

The survey names four components; here each is a slot, and its grid is `etude studies run o1-roadmap`:

- policy: what it begins from. Behaviours to begin with (wrong branches that are given up, alternatives) are in the
  worked answers of `countdown-lines`;
- reward: `experience.search.guide`, which also says what the beginning of an answer is worth: the policy's own
  likelihood, the task, answers that go on from there (Math-Shepherd's label), or a reward model; `guide-potential` pays
  what it says as a potential;
- search: `experience.search`, best of N, a majority, beams, beams that look ahead, a tree by PUCT;
- learning from what was found, in any method of groups with `--set experience=groups-by-search`:

      clone what was chosen     this method (expert iteration, ReST)
      policy gradient on all    reinforce, ppo, grpo
      best against worst        grpo, objective=dpo advantages=none reference=frozen
      towards the visits        reinforce, advantages=visit-shares

This method changes GRPO in three places:

1. eight answers of each problem are searched for, not only sampled (`groups-by-search`); a step is what the survey
   calls a round, of search and of learning, with `--set problems=400 --set minibatches=12` a large one;
2. of them the one that the search settled on is kept, where it is right (`settled-answers`);
3. its likelihood is raised, every token alike,

      loss = -1/N sum_{x: r(y_x) = 1} sum_t log pi(y_{x,t}),    N = tokens of these answers.

With `best-of:1` that is rejection fine-tuning on one sample, and every other learner its search-free form. The paper
has no experiment of its own. Not here: a value head that is regressed on the visits, and one, a step classifier or an
ensemble of several as guide; what the policy says of its own steps when it is asked; revision of one's own answers, and
several chains of revisions side by side.
"""

from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo
from etude.objectives.supervised import LogLikelihood
from etude.planners.guides import Verifier
from etude.planners.search import BestOf
from etude.planners.searched import GroupsBySearch, SettledAnswers

o1_roadmap = grpo.replace(
    id="o1-roadmap",
    title="Scaling of Search and Learning: A Roadmap to Reproduce o1 from Reinforcement Learning Perspective",
    paper="arXiv:2412.14135",
    row="survey",
    experience=GroupsBySearch(search=BestOf(samples=8, guide=Verifier()), size=8),
    filters=(SettledAnswers(),),
    advantages=None,
    objective=LogLikelihood(),
    aggregation="token-mean",
    claim=Claim(
        statement="Of as many generated tokens, answers that a beam which looks ahead settled on teach more than GRPO "
        "without a search.",
        bed="language/chain-aligned",
        baseline="grpo",
        changes={
            "problems": 14,
            "experience.search": "beam",
            "experience.search.width": 2,
            "experience.search.separator": ">",
            "experience.search.guide": "lookahead",
            "experience.search.guide.samples": 2,
        },
        measures=(
            Measure(name="end"),
            Measure(name="area", role="mechanism"),
            Measure(
                name="mean:sampled_tokens", role="mechanism", direction="equal", smallest=150.0, bounds=(0.0, None)
            ),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (2e-4, 4e-4, 8e-4)},
        paper_effect="none of its own: a survey, which expects search and learning to raise each other",
    ),
)
