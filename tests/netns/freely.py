"""``nodeproxy``, taking libnftables for one that deletes freely, or for one that does not, whatever it is.

usage: freely.py yes|no ARGUMENTS-OF-NODEPROXY
"""

import sys

from nodeproxy.cli.main import entry_point
from nodeproxy.sync import agent

freely = sys.argv.pop(1) == "yes"
agent.deletes_freely = lambda _: freely
entry_point()
