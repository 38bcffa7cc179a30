"""The side that sends."""
