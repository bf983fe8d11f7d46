"""The step path between the host and its sandboxes."""
