"""All code that runs inside a sandbox. Standard library, numpy, gymnasium and ``agentenv.wire`` only."""
