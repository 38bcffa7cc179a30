"""The command line `lr`: one module per command."""
