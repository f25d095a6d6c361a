"""Records the tables that kube-proxy leaves on a node, for the tests that take them over.

    make record-kube-proxy

A kube-proxy of each release follows a real API server with the objects of :mod:`cluster.record.objects` on node-a of a
test world; what it wrote goes to ``tests/netns/recorded/RELEASE``: the table of each family as ``nft`` lists it, and
which versions were at work. The objects, as the API server has them, go beside. kube-proxy of 1.37 is built with the
other programs; that of 1.31 from ``v1.31/go.mod``.
"""
