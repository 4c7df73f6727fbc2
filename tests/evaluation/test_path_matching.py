"""Path Matching Score and similarity of representations (arXiv:2511.05933)."""

from __future__ import annotations

import copy

import pytest
import torch

from etude.evaluation.paths import common_subsequence, path_f1, path_matching
from etude.evaluation.representations import between_forms, between_models, last_states, similarity
from language_toys import random_policy

PATH = ["ma", "po", "ti", "kq"]
TEXTS = ["2131?az,kq>", "2131=kq", "21"]


def test_the_exact_path_scores_one_and_no_true_node_scores_nothing() -> None:
    assert path_matching(PATH, PATH) == 1.0
    assert path_matching(["xx", "yy"], PATH) == 0.0
    assert path_matching([], PATH) == 0.0


def test_scores_are_those_computed_by_hand() -> None:
    said = ["ma", "xx", "ti"]  # 2 of 3 named are true, 2 of 4 true are named; ma, ti in order
    assert path_f1(said, PATH) == pytest.approx(4 / 7, abs=1e-12)
    assert common_subsequence(said, PATH) == 2
    assert path_matching(said, PATH) == pytest.approx(2 * (4 / 7) * 0.5 / (4 / 7 + 0.5), abs=1e-12)


def test_order_lowers_the_subsequence_and_not_the_sets() -> None:
    said = ["po", "ma", "ti", "kq"]
    assert path_f1(said, PATH) == 1.0
    assert common_subsequence(said, PATH) / len(PATH) == 0.75
    assert path_matching(said, PATH) == pytest.approx(2 * 0.75 / 1.75, abs=1e-12)
    assert common_subsequence(PATH[::-1], PATH) == 1


def test_saying_a_node_again_changes_neither() -> None:
    assert path_matching([*PATH, "ma"], PATH) == 1.0


def test_a_path_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one node"):
        path_matching(PATH, [])


def test_a_checkpoint_is_like_itself_in_every_layer() -> None:
    policy = random_policy()
    found = between_models(policy, policy, TEXTS)
    assert found.shape == (3,)
    torch.testing.assert_close(found, torch.ones(3).double(), atol=1e-9, rtol=0)


def test_another_head_changes_no_layer_and_another_layer_all_after_it() -> None:
    policy, other, deeper = (random_policy() for _ in range(3))
    with torch.no_grad():
        other.model.lm_head.weight.add_(1.0)
        deeper.model.model.layers[0].mlp.down_proj.weight.mul_(-3.0)
    torch.testing.assert_close(between_models(policy, other, TEXTS), torch.ones(3).double(), atol=1e-9, rtol=0)
    found = between_models(policy, deeper, TEXTS)
    assert float(found[0]) == pytest.approx(1.0, abs=1e-9)
    assert (found[1:] < 0.999).all()


def test_states_are_those_at_the_last_token_whatever_stands_beside() -> None:
    policy = random_policy()
    together, alone = last_states(policy, TEXTS), last_states(policy, TEXTS[2:])
    torch.testing.assert_close(together[:, 2:], alone, atol=1e-5, rtol=0)
    ids = torch.tensor([policy.encode(TEXTS[0])])
    with torch.no_grad():
        expected = policy.model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(together[:, 0], torch.stack([h[0, -1] for h in expected]), atol=1e-5, rtol=0)


def test_forms_are_compared_pair_by_pair() -> None:
    policy = random_policy()
    found = between_forms(copy.copy(policy), TEXTS, TEXTS[::-1])
    states = last_states(policy, TEXTS)
    torch.testing.assert_close(found, similarity(states, states.flip(1)), atol=1e-6, rtol=0)
    assert (found < 1).all()


def test_similarity_is_the_mean_cosine() -> None:
    one = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    other = torch.tensor([[[0.0, 2.0], [3.0, 3.0]]])
    assert similarity(one, other).tolist() == pytest.approx([0.5], abs=1e-12)
