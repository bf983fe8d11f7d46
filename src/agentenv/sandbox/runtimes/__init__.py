"""Drivers, and the named parts they share."""
