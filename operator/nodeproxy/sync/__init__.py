"""Turns the crank: from changed objects to changed rules, at the right moments."""
