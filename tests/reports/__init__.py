"""Faults reported against service proxies, one test or more for each: what is right, shown where the fault would show.

A test is named after its entry, ``test_<group><number>_…``: group a is about rules for a Service of some shape, group
b about transactions that fail, group c about size and speed, group h about the node and other software on it. The
public report is cited in the docstring.
"""
