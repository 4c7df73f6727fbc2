"""Guess a number from 1 to 9 in four turns; the world says whether it is higher or lower."""

from etude.core.episodes import Problem, Segment
from etude.core.task import LanguageTask, StepResult


class Game:
    def reset(self, problem, seed):
        self.secret, self.turns = int(problem.answer), 0
        return [Segment("user", problem.prompt)]

    def step(self, segment):
        self.turns += 1
        said = int(segment.text) if segment.text.strip().isdigit() else 0
        won = said == self.secret
        hint = "higher" if said < self.secret else "lower"
        return StepResult([Segment("user", f"{hint}\n")], float(won), won, self.turns == 4, {"success": won})


class Guess(LanguageTask):
    """Guess a number from 1 to 9."""

    id = "guess"
    max_tokens = 4

    def problems(self, split):
        return [Problem(f"{split}/{n}", "guess\n", str(n)) for n in range(1, 10)]

    def environment(self):
        return Game()


guess = Guess()
