"""What stands before is never changed by what is put behind it."""

from __future__ import annotations

import torch

from etude.policies.stack import Stack


def test_rows_stay_in_their_place_while_there_is_room() -> None:
    stack, rows = Stack(), torch.arange(6.0).view(3, 2)
    wanted, now, places = rows.clone(), rows, []
    for k in range(1, 20):
        more = torch.full((1 + k % 3, 2), float(k))
        now, wanted = stack.grown(now, more), torch.cat([wanted, more])
        places.append(now.data_ptr())
        assert torch.equal(now, wanted)
    assert len(set(places)) <= 5, "copied as often as it doubled"
    assert torch.equal(rows, torch.arange(6.0).view(3, 2))


def test_what_it_did_not_make_is_copied() -> None:
    stack = Stack()
    now = stack.grown(torch.zeros(2, 1), torch.ones(1, 1))
    for other in (now.clone(), now[1:], torch.zeros(3, 2)[:, :1]):
        found = stack.grown(other, torch.ones(1, 1))
        assert torch.equal(found, torch.cat([other, torch.ones(1, 1)])) and found.data_ptr() != other.data_ptr()
    wide = stack.grown(torch.zeros(2, 3), torch.ones(1, 3))
    assert wide.shape == (3, 3)


def test_fewer_rows_go_on_where_the_others_were() -> None:
    stack = Stack()
    four = stack.grown(torch.arange(3.0), torch.tensor([3.0]))
    three = stack.grown(four[:2], torch.tensor([9.0]))
    assert three.tolist() == [0, 1, 9] and three.data_ptr() == four.data_ptr() and four[2] == 9
