"""What the kernel should hold: a plan per service port, its differences from what is there, and their text."""
