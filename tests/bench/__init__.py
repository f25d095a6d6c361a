"""The benchmark: how long loads, changes and audits take, and how much memory, at several sizes.

Every measurement is a process of its own in a network namespace of its own, so that neither memory nor tables mix.
It runs the product's own code from the decoder to libnftables; clocks are put around functions from outside.

``make bench`` runs it; docs/performance.md says what the figures mean.
"""
