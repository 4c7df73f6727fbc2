"""Rows of a conversation by episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from etude.core.draws import Draw
from etude.policies.sampling import Completion, Sampling

if TYPE_CHECKING:
    from etude.policies.protocols import Engine


class Lines:
    """The rows of a conversation by episode: what an episode shows is read once, as far as it goes on from before."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rows = engine, dict[int, int]()

    def sample(
        self,
        views: Mapping[int, list[int]],
        sampling: Sampling,
        draws: Sequence[Draw],
        begun: Sequence[int],
        last: bool,
        away: Collection[int] = (),
    ) -> list[Completion]:
        """One completion after each view; `last`: none of them is gone on with; `away`: others that will be.

        A row whose view does not go on from it is rewound to where both begin alike.
        """
        self.engine.close([self.rows.pop(i) for i in [*self.rows] if i not in views and i not in away])
        known = [i for i in views if i in self.rows]
        held = {i: self.engine.tokens(self.rows[i]) for i in known}
        common = {i: shared(held[i], views[i]) for i in known if views[i][: len(held[i])] != held[i]}
        back = [i for i, count in common.items() if count]
        self.engine.rewind([self.rows[i] for i in back], [common[i] for i in back])
        held |= {i: held[i][: common[i]] for i in back}
        longer = [i for i in known if common.get(i, 1)]
        self.engine.extend([self.rows[i] for i in longer], [views[i][len(held[i]) :] for i in longer])
        others = [self.rows.pop(i) for i in known if not common.get(i, 1)]
        self.engine.close(others)
        new = [i for i in views if i not in self.rows]
        self.rows.update(zip(new, self.engine.open([views[i] for i in new])))
        said = self.engine.sample([self.rows[i] for i in views], sampling, draws, begun, last)
        if last:
            self.rows = {i: row for i, row in self.rows.items() if i not in views}
        return said


def shared(held: Sequence[int], view: Sequence[int]) -> int:
    """How many tokens a row and a view begin with alike, of all but the view's last.

    >>> shared([1, 2, 3, 4], [1, 2, 5]), shared([1, 2, 3], [1, 2])
    (2, 1)
    """
    return next((n for n, (a, b) in enumerate(zip(held, view[:-1])) if a != b), min(len(held), len(view) - 1))
