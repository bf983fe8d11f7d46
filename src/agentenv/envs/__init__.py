"""The faces of agentenv: what a trainer steps, and the built-in GridWorld."""
