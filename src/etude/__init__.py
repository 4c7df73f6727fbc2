"""etude: reinforcement learning where every method is a short composition of shared parts."""
