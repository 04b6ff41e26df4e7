"""The loss, the optimiser, sharding, the step, the loop and its checkpoints."""
