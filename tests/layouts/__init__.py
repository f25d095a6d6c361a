"""Tables of other programs, as text that nft loads: what nodeproxy finds on a node when it takes over.

``services`` describes Services in a few plain values; ``kube_proxy`` writes the table that kube-proxy leaves for them.
Neither knows anything of nodeproxy.
"""
