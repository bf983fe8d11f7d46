"""Sandboxes used by hand: programs, files, standing still, copies. ``box.Sandbox`` is what users get.

access.py     what a sandbox is reached by; local.py in this process, remote.py through a keeper
reach.py      what of the network one reaches
ground.py     the runtime under one or several of them
process.py, exchange.py, files.py, trees.py      what is done in one
kept.py, keeper*.py, launch.py      sandboxes that outlive the command that made them
"""
