"""Many sandboxes as one run: what is started, what is seeded how, what a run leaves on disk."""
