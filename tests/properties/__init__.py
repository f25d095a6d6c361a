"""Whatever happens, in whatever order: tests that make up courses of events by the thousand and say what always holds.

``test_events`` takes the proxy of a table through any course of events, against a pretended kernel and the real one,
and compares what comes of it with the table that a first start makes of the final state. ``test_slots`` does the same
for the slot maps alone, ten thousand changes long. ``test_planner`` looks at plans and at who has which frontend,
``test_objects`` at objects that are almost right.

``objects`` and ``events`` make up what happens, ``course`` is what it happens to, ``profiles`` says how hard to try:
a minute or so as a rule, much longer with ``HYPOTHESIS_PROFILE=long``. Each run tries something else; a failure prints
how to repeat it.
"""
