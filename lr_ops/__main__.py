"""`python -m lr_ops`: the command line, where the `lr` script is not on the path."""

from lr_ops.cli.main import main

main()
