"""Generated from `proto/lr_wire/v1`; never edited."""
