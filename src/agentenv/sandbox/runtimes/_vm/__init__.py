"""What the runtimes that boot machines have in common."""
