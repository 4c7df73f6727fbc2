"""Tasks of control.

Built in, over arrays: `cartpole`, `pendulum`, `four-rooms`, `regulator` and point mazes (`pointmaze-umaze`,
`pointmaze-medium`, `pointmaze-large`). Every other name is an environment: an id
of EnvPool or Gymnasium, or a user's own (`environment.py`). The ids CartPole-v1 and Pendulum-v1 run on the built-in
arrays too, whose spaces, starts, dynamics, rewards and time limits are Gymnasium's; `--set task.backend=envpool` or
`gymnasium` has theirs.
"""
