"""What a run uses and what happened in it."""
