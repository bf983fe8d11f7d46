"""What makes training fail, looked for in an environment before it is trained on, inside its own sandbox."""
