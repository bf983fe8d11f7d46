"""Started by the machine's init as ``python -m agentenv.guest.agent``."""

from agentenv.guest.agent.agent import main

if __name__ == "__main__":
    main()
