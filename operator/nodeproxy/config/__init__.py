"""The administrator's decisions: where they come from, and whether they make sense."""
