class Watch:
    """Told how a run goes."""

    def on_step(self, run):
        run.add("twice", 2 * run.step)

    def on_evaluation(self, run):
        print(run.step, run.evaluation)
