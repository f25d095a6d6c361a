"""The audit: it finds whatever others change, and nothing else."""

import socket
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netns.namespaces import Namespace
from nodeproxy.kernel import netlink
from nodeproxy.kernel.audit import Difference
from nodeproxy.kernel.netlink import DumpInterruptedError, NftSocket
from nodeproxy.kube.addresses import Family
from nodeproxy.model.settings import ProxySettings
from unit.sync.support import TABLE_FAMILY, V4, V6, Table, endpoints, listing, service, shop, view

pytestmark = pytest.mark.usefixtures("namespace")


def nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, timeout=20)


class Audited:
    """A table that is as it should be, and its audit."""

    def __init__(self, family: Family = V4) -> None:
        self.table = Table(*shop(family), family=family)
        self.table.sync()
        self.audit = self.table.proxier._audit

    @property
    def name(self) -> str:
        return f"{TABLE_FAMILY[self.table.family]} kube-proxy"

    def look(self, *suspects: str) -> Difference | None:
        state = self.table.proxier._state
        assert state is not None
        return self.audit.look(state, self.table.planner.base[0], frozenset(suspects))

    def chain(self, beginning: str) -> str:
        """The first chain whose name begins so."""
        assert self.table.proxier._state is not None
        return min(name for name in self.table.proxier._state.mirror.chains if name.startswith(beginning))

    def container(self, beginning: str) -> str:
        assert self.table.proxier._state is not None
        mirror = self.table.proxier._state.mirror
        return min(name for name in (*mirror.containers, *mirror.affinity) if name.startswith(beginning))


Change = Callable[[Audited], str]

CHANGES: dict[str, Change] = {
    "the table is deleted": lambda a: f"delete table {a.name}",
    "the ruleset is flushed": lambda _: "flush ruleset",
    "all rules are flushed": lambda a: f"flush table {a.name}",
    "the table is dormant": lambda a: f"add table {a.name} {{ flags dormant; }}",
    "a chain is flushed": lambda a: f"flush chain {a.name} {a.chain('service-')}",
    "a base chain is flushed": lambda a: f"flush chain {a.name} nat-prerouting",
    "a base chain is deleted": lambda a: f"delete chain {a.name} nat-prerouting",
    "the policy of a base chain is changed": lambda a: f"add chain {a.name} filter-forward {{ policy drop; }}",
    "a chain is renamed": lambda a: f"rename chain {a.name} {a.chain('service-')} renamed",
    "a chain is added": lambda a: f"add chain {a.name} stranger",
    "a base chain is added": lambda a: f"add chain {a.name} stranger {{ type filter hook input priority 0; }}",
    "a rule is added": lambda a: f"add rule {a.name} services accept",
    "a rule is inserted": lambda a: f"insert rule {a.name} {a.chain('service-')} drop",
    "a set is added": lambda a: f"add set {a.name} stranger {{ type mark; }}",
    "a set is deleted": lambda a: f"flush table {a.name}\ndelete set {a.name} cluster-ips",
    "a set of clients has another timeout": lambda a: (
        f"add set {a.name} {a.container('affinity-')} "
        f"{{ type {'ipv4_addr' if a.table.family is V4 else 'ipv6_addr'}; flags dynamic,timeout; timeout 5s; }}"
    ),
    "an element is added to a set": lambda a: (
        f"add element {a.name} cluster-ips {{ {'192.0.2.99' if a.table.family is V4 else '2001:db8::99'} }}"
    ),
    "a set is emptied": lambda a: f"flush set {a.name} cluster-ips",
    "a map is emptied": lambda a: f"flush map {a.name} service-ips",
    "an element is added to a map": lambda a: f"add element {a.name} service-nodeports {{ tcp . 31999 : drop }}",
    "an element leads elsewhere": lambda a: (
        f"delete element {a.name} service-nodeports {{ tcp . 30006 }}\n"
        f"add element {a.name} service-nodeports {{ tcp . 30006 : drop }}"
    ),
    "a slot is emptied": lambda a: f"delete element {a.name} endpoints-tcp-0 {{ 1 }}",
    "a slot leads elsewhere": lambda a: (
        f"delete element {a.name} endpoints-tcp-0 {{ 1 }}\n"
        f"add element {a.name} endpoints-tcp-0 {{ 1 : {'192.0.2.9' if a.table.family is V4 else '2001:db8::9'} . 99 }}"
    ),
    "a free slot is filled": lambda a: (
        f"add element {a.name} endpoints-tcp-0 "
        f"{{ 900 : {'192.0.2.9' if a.table.family is V4 else '2001:db8::9'} . 99 }}"
    ),
    "a slot leads to another chain": lambda a: (
        f"delete element {a.name} endpoint-chains-0 {{ 0 }}\n"
        f"add element {a.name} endpoint-chains-0 {{ 0 : goto reject-chain }}"
    ),
}


@pytest.fixture(params=[V4, V6], ids=["IPv4", "IPv6"])
def audited(request: pytest.FixtureRequest, namespace: Namespace) -> Audited:
    return Audited(request.param)


_CASES = [(name, [V4, V6][number % 2]) for number, name in enumerate(CHANGES)]
changes = pytest.mark.parametrize(("change", "family"), _CASES, ids=[name for name, _ in _CASES])


def test_nothing_differs_in_a_table_that_nobody_touched(audited: Audited) -> None:
    assert audited.look() is None
    assert audited.look() is None


@changes
def test_whatever_others_change_is_found_in_a_table_that_was_not_looked_at_before(change: str, family: Family) -> None:
    audited = Audited(family)
    nft(CHANGES[change](audited))
    found = audited.look()
    assert found is not None
    assert found.reason
    assert audited.look() is not None, "it has to be found until it is corrected"


@changes
def test_whatever_others_change_is_found_and_corrected_and_then_found_right(change: str, family: Family) -> None:
    audited = Audited(family)
    before = view(audited.table.family)
    assert audited.look() is None
    nft(CHANGES[change](audited))
    assert audited.look() is not None
    audited.table.proxier.suspect(())
    audited.table.sync()
    assert audited.table.last.drift
    audited.table.tidy()
    assert audited.look() is None
    assert view(audited.table.family) == before


def rewritten(audited: Audited, chain: str) -> str:
    """A chain with one rule that drops, and the comments that its rules have."""
    lines = [line.strip() for line in listing(audited.table.family).splitlines()]
    begin = lines.index(f"chain {chain} {{")
    rules = [line for line in lines[begin + 1 : lines.index("}", begin)] if "comment" in line]
    comments = [rule.rpartition("comment ")[2] for rule in rules]
    assert comments
    dropping = [f"add rule {audited.name} {chain} drop comment {comment}" for comment in comments]
    return "\n".join([f"flush chain {audited.name} {chain}", *dropping])


def test_a_rule_that_was_edited_under_its_comment_is_found_and_written_again(audited: Audited) -> None:
    before = view(audited.table.family)
    chain = audited.chain("service-")
    assert audited.look() is None
    nft(rewritten(audited, chain))
    found = audited.look()
    assert found is not None
    assert found.chains == {chain}
    audited.table.proxier.suspect(())
    audited.table.sync()
    assert view(audited.table.family) == before


def test_a_rule_that_was_edited_under_its_comment_since_our_last_commit_is_found_if_its_chain_is_suspect(
    audited: Audited,
) -> None:
    before = view(audited.table.family)
    chain = audited.chain("service-")
    nft(rewritten(audited, chain))
    assert audited.look() is None, "its comments are right, and it was not known before"
    audited.audit.forget()
    found = audited.look(chain)
    assert found is not None
    assert found.chains == {chain}
    audited.audit.forget()
    audited.table.proxier.suspect({chain})
    audited.table.sync()
    assert view(audited.table.family) == before


def test_a_suspect_chain_that_is_as_it_was_needs_no_correction(audited: Audited) -> None:
    chain = audited.chain("service-")
    assert audited.look() is None
    nft(f"insert rule {audited.name} {chain} counter")
    handle = next(
        line.rpartition("handle ")[2]
        for line in listing(audited.table.family, "-a").splitlines()
        if line.strip().startswith("counter")
    )
    nft(f"delete rule {audited.name} {chain} handle {handle}")
    assert audited.look(chain) is None


def test_a_table_that_was_saved_edited_and_restored_is_found(audited: Audited) -> None:
    before = view(audited.table.family)
    assert audited.look() is None
    saved = listing(audited.table.family)
    nft(f"delete table {audited.name}\n{saved.replace(' fib daddr type local ', ' ')}")
    audited.table.proxier.suspect(())
    audited.table.sync()
    assert audited.table.last.drift == "the table was made anew"
    assert view(audited.table.family) == before
    assert audited.look() is None


def test_our_own_changes_are_not_found(audited: Audited) -> None:
    family, table = audited.table.family, audited.table
    assert audited.look() is None
    table.sync(service("new", 20, family=family), endpoints("new", [1, 2, 3], family=family))
    assert audited.look() is None
    table.sync(endpoints("many", [2, 3, 4, 5], family=family))
    assert audited.look() is None, "slots that are out of use hold what they did"
    table.tidy()
    assert audited.look() is None
    table.sync(endpoints("new", [], family=family))
    table.tidy()
    assert audited.look() is None


def test_what_others_did_to_something_that_we_changed_as_well_is_found(audited: Audited) -> None:
    family, table = audited.table.family, audited.table
    assert audited.look() is None
    table.sync(service("new", 20, family=family), endpoints("new", [1, 2, 3], family=family))
    nft(f"insert rule {audited.name} {audited.chain('service-')} drop")
    assert audited.look() is not None


def test_clients_that_come_and_go_make_no_difference(audited: Audited) -> None:
    assert audited.look() is None
    client = "192.0.2.77" if audited.table.family is V4 else "2001:db8::77"
    nft(f"add element {audited.name} {audited.container('affinity-')} {{ {client} }}")
    assert audited.look() is None


def test_counters_that_tick_make_no_difference(namespace: Namespace) -> None:
    found = Table(*shop(), settings=ProxySettings(endpoint_chains="Always"))
    found.sync()
    audit, state, base = found.proxier._audit, found.proxier._state, found.planner.base[0]
    assert state is not None
    assert audit.look(state, base) is None
    namespace.run("ip", "address", "add", "10.244.0.1/32", "dev", "lo")
    namespace.run("ip", "route", "add", "10.96.0.0/16", "dev", "lo")
    before = listing(V4)
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("10.96.0.2", 80))
    assert listing(V4) != before, "no counter has ticked"
    assert audit.look(state, base) is None


def test_another_order_of_elements_makes_no_difference(audited: Audited) -> None:
    """Elements that are deleted and added again may come in another order."""
    assert audited.look() is None
    name = audited.container("endpoints-tcp-")
    lines = listing(audited.table.family).partition(f"map {name} {{")[2].partition("elements = {")[2].partition("}")[0]
    nft(
        f"flush map {audited.name} {name}\n"
        + "\n".join(f"add element {audited.name} {name} {{ {slot} }}" for slot in reversed(lines.split(",")))
    )
    assert audited.look() is None


def test_tables_that_are_not_ours_make_no_difference(audited: Audited) -> None:
    assert audited.look() is None
    other = "ip6" if audited.table.family is V4 else "ip"
    nft(f"add table inet kube-proxy\nadd table {other} kube-proxy\nadd table {audited.name}-2")
    assert audited.look() is None


def test_an_interrupted_dump_is_repeated(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    original, tries = NftSocket.dump, []

    def interrupted(self: NftSocket, kind: int, names: dict[int, str]) -> object:
        if kind == netlink.GET_RULE and len(tries) < 2:
            tries.append(kind)
            raise DumpInterruptedError
        return original(self, kind, names)

    monkeypatch.setattr(NftSocket, "dump", interrupted)
    assert audited.look() is None
    assert len(tries) == 2


@pytest.mark.parametrize("error", [DumpInterruptedError(), OSError(1, "Operation not permitted")])
def test_what_cannot_be_read_counts_as_different(
    audited: Audited, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> object:
        raise error

    monkeypatch.setattr(NftSocket, "dump", fail)
    found = audited.look()
    assert found is not None
    assert not found.chains


def test_no_audit_writes_anything_where_nothing_differs(audited: Audited) -> None:
    audited.table.nft.taken()
    audited.table.clock.time += 4000
    assert audited.table.sync() == []
    assert audited.table.last.full
    assert audited.table.last.drift == ""


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_changes_by_us_and_others_are_told_apart(data: st.DataObject) -> None:
    """After changes of our own nothing is found; after any of others, something is, until it is corrected."""
    space = Namespace("random")
    try:
        with space.enter():
            take_a_course(data)
    finally:
        space.close()


def take_a_course(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from([V4, V6]), label="family")
    audited = Audited(family)
    for number in range(data.draw(st.integers(1, 4), label="rounds")):
        hosts = data.draw(st.lists(st.integers(1, 9), unique=True, max_size=5), label="endpoints of many")
        audited.table.sync(endpoints("many", hosts, family=family))
        if data.draw(st.booleans(), label="tidy"):
            audited.table.tidy()
        if data.draw(st.booleans(), label="look"):
            assert audited.look() is None
        names = [name for name in CHANGES if "slot" not in name]
        change = data.draw(st.none() | st.sampled_from(names), label=f"change {number}")
        if change is not None:
            nft(CHANGES[change](audited))
            assert audited.look() is not None
            audited.table.proxier.suspect(())
            audited.table.sync()
        assert audited.look() is None
