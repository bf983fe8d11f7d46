"""Sandboxes: the contract every driver obeys, and the drivers."""
