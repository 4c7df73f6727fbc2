"""SWE-rebench: tasks of software engineering that are collected by machine, dated, and asked afresh (arXiv:2505.20411).

A benchmark. What the paper builds is here, small:

1. a collection with a count for each reason: `etude data collect --out tasks.jsonl` (of your own: `etude data collect
   candidates.jsonl`). What can be read off comes first: an issue of more than ten characters, resolved by exactly one
   change, with tests, a permissive licence, 1 to 15 files, mostly Python;
2. an execution check: all tests run five times before and after the change, each in a sandbox of its own. Kept are

       FAIL_TO_PASS = tests that fail before and pass after,  PASS_TO_PASS = tests that pass both times,

   as the tests of a task, if FAIL_TO_PASS is not empty; tests that do not come to the same in every run are flaky;
3. a dated evaluation: `etude evaluate MODEL --task mini-swe --set task.collected=tasks.jsonl --k 1,5 --released
   2025-07-01`. With r_j the share of tasks that run j of n = 5 resolves,

       resolved = mean_j r_j,  SEM = sd(r) / sqrt(n),  pass@n >= resolved;

   tasks that were created before the model came out are flagged, and resolved of those, of the fresh ones and of each
   month is said apart. A model that is older than all tasks has no flag;
4. a scaffold of one action per turn: `mini-swe` (open, search, replace, run, submit).

Its claim is what such dates are for: a policy that was shown repairs of the functions that were there by a day resolves
more of the tasks that are older than that day than of those that are not. It is taught as SFT teaches, changed in two
places, problems and rate, for a small blank model. Not here: recipes of installations that a language model proposes,
and a classifier of how clear an issue is; the paper has over 21,000 tasks.
"""

from etude.core.claims import Claim, Measure
from etude.methods.foundation.sft import sft
from etude.optimizers.adam import AdamW

swe_rebench = sft.replace(
    id="swe-rebench",
    title="SWE-rebench: An Automated Pipeline for Task Collection and Decontaminated Evaluation of Software "
    "Engineering Agents",
    paper="arXiv:2505.20411",
    row="benchmark",
    optimizer=AdamW(lr=2e-3),
    problems=32,
    claim=Claim(
        statement="Who was shown repairs of the older half of the functions resolves more of the tasks that are "
        "flagged for it than of fresh ones, and the collection keeps exactly the candidates that are tasks.",
        task="mini-swe",
        setting=(
            "a blank model of two layers, 250 steps of 32 repairs of functions that were there by July; 300 tasks of "
            "all functions, five runs; 60 good candidates, and five that are spoilt in each of ten ways"
        ),
        measures=(
            Measure(name="resolved", smallest=0.05, bounds=(0.0, 1.0)),
            Measure(name="candidates judged rightly", role="mechanism", against=1.0, direction="equal", minimum=1.0),
        ),
        learned_on=None,
        sweep={},
        paper_effect="DeepSeek-V3 resolves 39.7% of SWE-bench Verified and 21.3% of fresh tasks",
    ),
)
