"""What travels between sites: names, records and their bytes. Pure: no I/O."""
