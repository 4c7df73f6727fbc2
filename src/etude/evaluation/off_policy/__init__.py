"""How good a policy is, judged from logs of another one: estimates with intervals, and how far it leaves the logs."""
