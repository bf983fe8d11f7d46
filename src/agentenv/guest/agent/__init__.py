"""What runs first inside a virtual machine: carries requests, bytes and answers between it and the host."""
