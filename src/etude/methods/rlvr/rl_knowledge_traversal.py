"""GRPO as a probe of hierarchical knowledge: does reinforcement teach to walk through what is known? (arXiv:2511.05933)

The paper compares models before and after reinforcement on questions about codes in a hierarchy. What it says of them
is measured here on one small model, which has read every fact of a tree, after supervised answers alone and after GRPO
with a 0/1 reward for the answer and free text before it: the task `hierarchy`, Path Matching Scores
(`etude.evaluation.paths`), layer by layer similarity (`etude.evaluation.representations`) and the experiment.

Changes GRPO in one place, as the models that the paper studies were trained (arXiv:2501.12948):

1. a KL term holds the policy to the model that has read the facts, with the coefficient 0.001, so that facts about
   which nobody asks are not forgotten.

    loss = grpo + 0.001 (r - log r - 1),   r = pi_ref / pi

The paper trains nothing itself and names no coefficient.
"""

from etude.core.claims import Claim, Measure
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference

rl_knowledge_traversal = grpo.replace(
    id="rl-knowledge-traversal",
    title="Reinforcement Learning Improves Traversal of Hierarchical Knowledge in LLMs",
    paper="arXiv:2511.05933",
    row="analysis",
    regularizers=(KLToReference(coefficient=0.001, estimator="k3"),),
    reference=Frozen(),
    claim=Claim(
        statement="On leaves that were only read about, reinforcement answers better than supervised answers do; on "
        "heavy questions its paths are better; and it changes what the model makes of questions more than what it "
        "makes of statements.",
        task="compose",
        setting="a tree and a model for each seed: 700 steps of reading, then 50 of reinforcement or 100 of answers",
        measures=(
            Measure(name="majority", smallest=0.05),
            Measure(name="heavy paths", smallest=0.05),
            Measure(name="similarity of statements", smallest=0.05, bounds=(-1.0, 1.0)),
            Measure(
                name="lead, structured",
                role="mechanism",
                direction="lower",
                smallest=0.05,
                bounds=(-1.0, 1.0),
                rests_on=("majority",),
            ),
            Measure(name="majority, distilled", role="mechanism", smallest=0.05),
            Measure(name="always right", role="mechanism", smallest=0.05),
        ),
        learned_on="majority",
        paper_effect="MedConceptsQA 0.778 against 0.541, 24 points that a structured prompt makes 8; paths "
        "0.597 against 0.503; similarity 0.85 to 0.92 of statements, 0.65 to 0.73 of questions",
    ),
)
