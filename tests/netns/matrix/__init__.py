"""Packets for every row of the behaviour: policies by endpoints, destinations, protocols, families and sources.

``axes`` names the values, ``cells`` generates every combination and groups them into rows (a test each),
``expectation`` says what becomes of a cell and knows nothing of the program under test. ``ground`` builds Services and
network, ``lab`` runs the agent and asks all cells of one configuration at once; ``judge`` compares. ``sctp`` is an
SCTP client and server out of raw sockets, for kernels that only track SCTP. ``spoilt`` holds deliberately wrong
templates, each with the cells that have to notice it. Run with ``pytest tests/netns/matrix``.
"""
