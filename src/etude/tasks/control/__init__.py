"""Tasks of control.

Built in, over arrays: `cartpole`, `pendulum`, `four-rooms`, `regulator`, point mazes (`pointmaze-umaze`,
`pointmaze-medium`, `pointmaze-large`), and the same mazes for a chain of points that turns slowly (`chainmaze-umaze`,
`chainmaze-medium`, `chainmaze-large`). Every other name is an environment: an id
of EnvPool or Gymnasium, or a user's own (`environment.py`). The ids CartPole-v1 and Pendulum-v1 run on the built-in
arrays too, whose spaces, starts, dynamics, rewards and time limits are Gymnasium's; `--set task.backend=envpool` or
`gymnasium` has theirs.
"""
