"""Models small enough to be read: they say what their tables say, end where they must, and are trained as any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.experiments.rlvr.chain_model import ChainModel
from etude.experiments.rlvr.path_models import two_matrix_table
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.tasks.language.chains import Chains
from etude.tasks.language.paths import Paths

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"atol": 1e-12, "rtol": 0.0}


def filled(name: str) -> LanguagePolicy:
    """In float64, all weights normal."""
    policy = LanguagePolicy.load(name, device="cpu", dtype="float64")
    random = torch.Generator().manual_seed(3)
    for weight in policy.model.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=random, dtype=torch.float64))
    return policy


def logits(policy: LanguagePolicy, text: str) -> Tensor:
    """[n + 1] of the nodes and the end after a text, padded on the left as in sampling."""
    tokens = policy.encode(text)
    padded = torch.tensor([[0, 0, *tokens]])
    mask = torch.tensor([[0, 0, *[1] * len(tokens)]])
    found = policy.model(padded, attention_mask=mask).logits[0, -1]
    return torch.cat([found[: policy.config.nodes], found[policy.tokenizer.eos_token_id, None]])


def test_two_matrices_are_summed() -> None:
    policy = filled("two-matrices:12")
    table = two_matrix_table(policy.model.model.w_m, policy.model.model.w_v)
    for target, way in ((7, "2"), (3, "0159"), (11, "4")):
        text = policy.decode([target]) + way
        expected = table[target, int(way[-1])]
        assert torch.allclose(logits(policy, text)[:-1], expected, **EXACT)


def test_a_path_table_has_logits_of_its_own_for_target_and_current_node() -> None:
    policy = filled("path-table:12")
    assert torch.allclose(logits(policy, "B013")[:-1], policy.model.model.f[11, 3], **EXACT)


@pytest.mark.parametrize("walked", ["", "b", "bdb"])
def test_linear_attention_is_the_papers(walked: str) -> None:
    policy = filled("linear-attention:8")
    problem = Chains(length=3, isolated=2, seed=1).problems("train")[0]
    text, _, source = str(problem.prompt).partition(">")
    names = "abcdefgh"
    counts = torch.zeros(1, 8 + 64, dtype=torch.float64)
    for first, second in text.split():
        counts[0, 8 + 8 * names.index(first) + names.index(second)] += 1
    for vertex in source + walked:
        counts[0, names.index(vertex)] += 1
    last = names.index((source + walked)[-1])
    tables = policy.model.model
    expected = ChainModel(tables.queries, tables.values, 0.2).logits(torch.tensor([last]), counts)[0]
    found = logits(policy, f"{problem.prompt}{walked}")
    assert found[-1] == (0.0 if (source + walked)[-1] in problem.info["sinks"] else -1e4)
    if found[-1] != 0:
        assert torch.allclose(found[:-1], expected, **EXACT)


@pytest.mark.parametrize(
    ("name", "prompts"), [("two-matrices:12", ["B0", "B013"]), ("linear-attention:8", ["ab cd bf>a", "ab>a"])]
)
def test_what_was_sampled_token_by_token_is_what_is_computed_at_once(name: str, prompts: list[str]) -> None:
    policy = filled(name)
    asked = [policy.encode(p) for p in prompts for _ in range(3)]
    draws = [Stream(0).draw("row", i) for i in range(len(asked))]
    for prompt, said in zip(asked, policy.generate(asked, Sampling(max_tokens=6), draws)):
        whole = policy.model(torch.tensor([[*prompt, *said.tokens]])).logits[0].detach().log_softmax(-1)
        expected = [float(whole[len(prompt) - 1 + i, t]) for i, t in enumerate(said.tokens)]
        assert said.logp == pytest.approx(expected, abs=1e-6)


def test_a_walk_ends_at_its_target_and_nowhere_else() -> None:
    policy = filled("path-table:12")
    there, elsewhere = (logits(policy, text).detach().softmax(-1)[-1] for text in ("5015", "5016"))
    assert (float(there), float(elsewhere)) == (1.0, 0.0)


@pytest.mark.slow
def test_it_learns_a_graph_from_its_paths_and_is_saved_like_any_other(tmp_path: Path) -> None:
    task = Paths(nodes=10, density=0.3, demonstrations=2)
    policy = LanguagePolicy.load("two-matrices:10", device="cpu")
    method = get_method("alpine")
    method = method.replace(problems=32, optimizer=method.optimizer.replace(lr=0.1))
    loop = LanguageLoop(method, task, policy, seed=0, steps=20)
    losses = [loop.step().metrics["loss"] for _ in range(20)]
    assert losses[-1] < 0.6 * losses[0]
    policy.save(tmp_path / "model")
    kept = LanguagePolicy.load(str(tmp_path / "model"), device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), kept.parameters(), strict=True))
    assert logits(kept, "30").equal(logits(policy, "30"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["planning-pg-vs-q", "planning-pg-vs-q/q_learning"])
def test_a_table_is_trained_by_policy_gradient_and_by_q_learning(method: str) -> None:
    from etude.methods.rlvr.planning_pg_vs_q import planning_pg_vs_q, q_learning

    chosen = (q_learning if "/" in method else planning_pg_vs_q).replace(problems=16)
    policy = LanguagePolicy.load("path-table:10", device="cpu")
    loop = LanguageLoop(chosen, Paths(nodes=10, density=0.3), policy, seed=0, steps=4)
    before = policy.model.model.f.detach().clone()
    metrics = [loop.step().metrics for _ in range(4)]
    assert not before.equal(policy.model.model.f) and all(m["loss"] == m["loss"] for m in metrics)


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="two-matrices wants its number of nodes, as in two-matrices:30"):
        LanguagePolicy.load("two-matrices:many", device="cpu")
    with pytest.raises(ConfigError, match="linear-attention takes 4 to 25 nodes"):
        LanguagePolicy.load("linear-attention:26", device="cpu")
    policy = LanguagePolicy.load("two-matrices:10", device="cpu")
    with pytest.raises(ConfigError, match="not written in the 10 nodes that two-matrices knows"):
        policy.encode("AB")
