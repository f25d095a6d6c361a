"""How rules get into the kernel, and what the kernel says back."""
