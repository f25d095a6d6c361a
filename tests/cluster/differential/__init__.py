"""The same objects, the same fate: kube-proxy and nodeproxy side by side on one API server.

Two networks of namespaces, alike to the last address, each with a node that a proxy serves. A cluster made at random is
created in the API server, which decides what is valid, and read by both proxies; then the same flows are sent in both
networks, and what becomes of each is compared.

``cells`` says what has to come up (each type with each policy and state) and deals it out over the seeds, ``states``
what endpoints a Service may have, ``generate`` makes the objects of a seed and ``settings`` the proxies'
configuration; ``ground`` is the network, ``proxies`` what runs in it; ``questions`` are the flows, ``fates`` what
becomes of them; ``known`` lists where they may differ, ``report`` says how they do, and ``laboratory`` puts it all
together.

    pytest tests/cluster/differential --seeds 50        # seeds 0 to 49
    pytest tests/cluster/differential --seed 17         # one
    pytest tests/cluster/differential --self-check      # kube-proxy on both sides: nothing may differ
"""
