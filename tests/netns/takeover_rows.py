"""Who goes where in a world whose node-a has the rules of the recordings, and what becomes of them."""

from netns import addresses as plan
from netns.flips_model import Served
from netns.probe import Dropped, Rejected
from netns.recorded import CLIENTS
from netns.takeover_traffic import Row, some_addresses

NODE = plan.node_address(0)
ALL = frozenset({"pod-a1", "pod-a2", "pod-b1"})
ROWS = {
    "pod to ClusterIP": Row("pod-a3", plan.host(plan.SERVICES, 91), 80, Served(ALL, masked=False)),
    "node to ClusterIP": Row("node-a", plan.host(plan.SERVICES, 91), 80, Served(ALL, masked=True)),
    "outside to ClusterIP": Row("client", plan.host(plan.SERVICES, 91), 80, Served(ALL, masked=True)),
    "outside to NodePort": Row("client", NODE, 30091, Served(ALL, masked=True)),
    "pod to single": Row("pod-a3", plan.host(plan.SERVICES, 92), 80, Served(frozenset({"pod-a1"}), masked=False)),
    "outside to Local VIP": Row(
        "client", plan.host(plan.VIPS, 94), 80, Served(frozenset({"pod-a1", "pod-a2"}), masked=False)
    ),
    "pod to Local VIP": Row("pod-a3", plan.host(plan.VIPS, 94), 80, Served(ALL, masked=False)),
    "node to Local VIP": Row("node-a", plan.host(plan.VIPS, 94), 80, Served(ALL, masked=True)),
    "outside to external IP": Row(
        "client", plan.host(plan.EXTERNAL_IPS, 95), 80, Served(frozenset({"pod-a2", "pod-b1"}), masked=True)
    ),
    "outside to none": Row("client", NODE, 30096, Rejected),
    "pod to none": Row("pod-a3", plan.host(plan.SERVICES, 96), 80, Rejected),
    "pod to none here": Row("pod-a3", plan.host(plan.SERVICES, 97), 80, Dropped),
    "outside of the ranges": Row("client", plan.host(plan.VIPS, 98), 80, Dropped),
}
STICKY = {
    f"sticky client {number} to {name}": Row("client", to, number_, Served(ALL, masked=True), source, sticky=True)
    for number, source in enumerate(some_addresses(CLIENTS))
    for name, to, number_ in (("ClusterIP", plan.host(plan.SERVICES, 93), 80), ("NodePort", NODE, 30093))
}
