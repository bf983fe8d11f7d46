"""The network of machines: a namespace for each, rules, addresses, and the host's side of it."""
