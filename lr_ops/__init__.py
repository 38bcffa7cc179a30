"""What people run: the command line, its configuration and its logs."""
