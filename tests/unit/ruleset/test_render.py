"""Values become text through the templates; whatever is wrong with a template is said with its name and line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeproxy.kube.addresses import Family
from nodeproxy.model.node import LocalDetector
from nodeproxy.ruleset.mirror import SlotUse
from nodeproxy.ruleset.names import MAX_COMMENT
from nodeproxy.ruleset.operations import (
    AddChain,
    AddClients,
    AddContainer,
    AddElement,
    AddRule,
    Client,
    FillSlots,
    FreeSlots,
    Piece,
    RemoveChain,
    RemoveElement,
    ReplaceTable,
)
from nodeproxy.ruleset.render import TEMPLATES, Container, RenderContext, Renderer, TemplateError, digest_of
from nodeproxy.ruleset.rules import (
    AffinitySet,
    BalancingChain,
    Element,
    EndpointChain,
    ExternalChain,
    FirewallChain,
    StickyEndpoint,
    Target,
)
from nodeproxy.ruleset.slots import SlotRange
from unit.ruleset.build import V4, V6, renderer

V4_TARGETS = (Target("10.0.0.1", 80), Target("10.0.0.2", 8080))
V6_TARGETS = (Target("fd00::1", 80), Target("fd00::2", 8080))
USE = SlotUse("endpoints-tcp-", SlotRange(3, 40, 2))


def texts(made: Renderer, chain: object, use: SlotUse | None = None) -> list[str]:
    return [rule.text for rule in made.rules(chain, use)]  # type: ignore[arg-type]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the templates, as ``--templates`` is given one."""
    return Path(shutil.copytree(TEMPLATES.resolve(), tmp_path / "templates"))


# --- forms of rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "targets", "expected"),
    [
        (V4, V4_TARGETS[:1], "meta l4proto udp dnat to 10.0.0.1:80"),
        (V6, V6_TARGETS[:1], "meta l4proto udp dnat to [fd00::1]:80"),
        (V4, V4_TARGETS, "meta l4proto udp dnat ip to numgen random mod 2 offset 40 map @endpoints-tcp-3"),
        (V6, V6_TARGETS, "meta l4proto udp dnat ip6 to numgen random mod 2 offset 40 map @endpoints-tcp-3"),
    ],
)
def test_single_endpoint_is_dialled_and_several_are_drawn_from_slots(
    family: Family, targets: tuple[Target, ...], expected: str
) -> None:
    """One endpoint needs no lookup; brackets stand around IPv6 addresses only where a port follows."""
    use = USE if len(targets) > 1 else None
    assert texts(renderer(family), BalancingChain.of_targets("service-x/y", "udp", targets), use) == [expected]


def test_affinity_asks_for_each_endpoint_before_it_draws() -> None:
    sticky = (StickyEndpoint("affinity-1", "endpoint-1"), StickyEndpoint("affinity-2", "endpoint-2"))
    chain = BalancingChain("service-x/y", "tcp", chains=("endpoint-1", "endpoint-2"), sticky=sticky)
    assert texts(renderer(V6), chain, SlotUse("endpoint-chains-", SlotRange(0, 8, 2))) == [
        "ip6 saddr @affinity-1 goto endpoint-1",
        "ip6 saddr @affinity-2 goto endpoint-2",
        "numgen random mod 2 offset 8 vmap @endpoint-chains-0",
    ]


def test_single_sticky_endpoint_is_gone_to() -> None:
    chain = BalancingChain("service-x/y", "tcp", chains=("e",), sticky=(StickyEndpoint("a", "e"),))
    assert texts(renderer(), chain) == ["ip saddr @a goto e", "goto e"]


@pytest.mark.parametrize(
    ("affinity_set", "counter", "expected"),
    [
        (None, True, ["meta l4proto sctp counter dnat to 10.0.0.1:80"]),
        ("a", False, ["update @a { ip saddr }", "meta l4proto sctp dnat to 10.0.0.1:80"]),
        ("a", True, ["update @a { ip saddr }", "meta l4proto sctp counter dnat to 10.0.0.1:80"]),
    ],
)
def test_endpoint_chain_remembers_counts_and_dials(
    affinity_set: str | None, counter: bool, expected: list[str]
) -> None:
    chain = EndpointChain("endpoint-x/y", "sctp", V4_TARGETS[0], affinity_set, counter=counter)
    assert texts(renderer(), chain) == expected


MASQUERADE = "mark set mark or 0x00004000"


@pytest.mark.parametrize(
    ("detector", "condition"),
    [
        (LocalDetector("cidr", "10.0.0.0/8"), "ip saddr 10.0.0.0/8"),
        (LocalDetector("interface", "cni0"), 'iifname "cni0"'),
        (LocalDetector("interface-prefix", "veth"), 'iifname "veth*"'),
    ],
)
def test_pods_are_told_as_the_detector_says(detector: LocalDetector, condition: str) -> None:
    """Interfaces by name, never by index: they may come later than the rules."""
    made = renderer(detector=detector)
    local = ExternalChain("external-x/y", True, "service-x/y", "local-x/y")
    assert texts(made, local) == [
        f"{condition} goto service-x/y",
        f"fib saddr type local {MASQUERADE}",
        "fib saddr type local goto service-x/y",
        "goto local-x/y",
    ]
    negated = condition.replace("saddr ", "saddr != ").replace("iifname ", "iifname != ")
    assert services(made)[0] == f"ip daddr @cluster-ips {negated} {MASQUERADE}"


def services(made: Renderer) -> list[str]:
    """The rules of the chain that dispatches."""
    [chain] = [chain for chain in made.base().chains if chain.name == "services"]
    return [rule.text for rule in chain.rules]


def test_without_a_detector_nothing_is_guessed() -> None:
    made = renderer(detector=None)
    local = ExternalChain("external-x/y", True, "service-x/y", None)
    assert texts(made, local) == [f"fib saddr type local {MASQUERADE}", "fib saddr type local goto service-x/y"]
    assert len(services(made)) == 2


def test_masquerading_all_needs_no_detector() -> None:
    for detector in (None, LocalDetector("cidr", "10.0.0.0/8")):
        assert services(renderer(detector=detector, masquerade_all=True))[0] == f"ip daddr @cluster-ips {MASQUERADE}"


def test_cluster_policy_masquerades_everything_that_comes_from_outside() -> None:
    assert texts(renderer(), ExternalChain("external-x/y", False, "service-x/y", "service-x/y")) == [
        MASQUERADE,
        "goto service-x/y",
    ]


@pytest.mark.parametrize(("bit", "mark"), [(0, "0x00000001"), (14, "0x00004000"), (31, "0x80000000")])
def test_mark_is_the_configured_bit(bit: int, mark: str) -> None:
    made = renderer(masquerade_bit=bit)
    assert f"mark or {mark}" in services(made)[0]
    [chain] = [chain for chain in made.base().chains if chain.name == "masquerading"]
    assert chain.rules[0].text == f"mark and {mark} != 0 mark set mark xor {mark} masquerade fully-random"


def test_firewall_lets_in_its_ranges_or_nobody() -> None:
    some = FirewallChain("firewall-x/y", ("10.0.0.0/8", "1.2.3.4"))
    assert texts(renderer(), some) == ["ip saddr 10.0.0.0/8 return", "ip saddr 1.2.3.4 return", "drop"]
    assert texts(renderer(V6), FirewallChain("firewall-x/y", ())) == ["drop"]


def test_affinity_sets_can_be_added_to_by_a_rule() -> None:
    """Without ``dynamic`` a set that a rule has updated can't be declared again."""
    container = renderer(V6).affinity_set(AffinitySet("affinity-x/y", 90))
    assert container.body == "type ipv6_addr ; flags dynamic,timeout ; timeout 90s"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoints-tcp-0", "ip daddr . tcp dport"),
        ("endpoints-udp-12", "ip daddr . udp dport"),
        ("endpoints-sctp-1", "ip daddr . sctp dport"),
        ("endpoint-chains-3", "verdict"),
    ],
)
def test_slot_maps_hold_what_their_name_says(name: str, value: str) -> None:
    container = renderer().slot_map(name, 1500)
    assert (container.kind, container.name) == ("map", name)
    assert container.lines == (f"typeof numgen random mod 1 : {value}", "size 1500")


# --- transactions ------------------------------------------------------------------------------------------------


def test_transaction_says_whose_each_statement_is() -> None:
    """nft names the line that it refuses; the line names the Service."""
    made = renderer()
    rules = made.rules(FirewallChain("firewall-x/y", ()))
    piece = Piece(
        prepare=[AddChain("ns/svc:p", "firewall-x/y"), AddRule("ns/svc:p", "firewall-x/y", rules[0])],
        switch=[
            [
                RemoveElement("ns/svc:p", "firewall-ips", ("10.0.0.1", "tcp", 80)),
                AddElement("ns/svc:p", Element("firewall-ips", ("10.0.0.1", "tcp", 80), "firewall-x/y")),
                AddElement("ns/two", Element("no-endpoint-services", ("10.0.0.2", "tcp", 80), "drop", "ns/two")),
                AddElement("", Element("cluster-ips", ("10.0.0.2",))),
            ]
        ],
    )
    declared = {"firewall-ips": Container("map", "firewall-ips", ("type ipv4_addr : verdict", "size 9"))}
    text = made.transaction(piece.operations(), declared.get)
    assert [line.removesuffix(" # ") for line in text.splitlines()] == [
        "add table ip kube-proxy",
        "add chain ip kube-proxy firewall-x/y # ns/svc:p",
        f'add chain ip kube-proxy firewall-x/y {{ drop comment "#{rules[0].digest}" ; }} # ns/svc:p',
        "delete element ip kube-proxy firewall-ips {",
        "10.0.0.1 . tcp . 80, # ns/svc:p",
        "}",
        "add element ip kube-proxy cluster-ips {",
        "10.0.0.2,",
        "}",
        "add map ip kube-proxy firewall-ips { type ipv4_addr : verdict ; size 9 ; elements = {",
        "10.0.0.1 . tcp . 80 : goto firewall-x/y, # ns/svc:p",
        "} ; }",
        "add element ip kube-proxy no-endpoint-services {",
        '10.0.0.2 . tcp . 80 comment "ns/two" : drop, # ns/two',
        "}",
    ]


@pytest.mark.parametrize(
    "element",
    [
        Element("cluster-ips", ("10.0.0.2",)),
        Element("service-ips", ("10.0.0.1", "tcp", 80), "service-x/y"),
        Element("no-endpoint-services", ("10.0.0.1", "tcp", 80), "drop", "ns/svc"),
        Element("no-endpoint-nodeports", ("udp", 80), "reject-chain", "ns/svc:p"),
    ],
)
def test_element_is_added_in_the_words_in_which_it_is_listed(element: Element) -> None:
    made = renderer()
    assert f"\n{made.listed(element)}, # ns/svc\n" in made.transaction([AddElement("ns/svc", element)])


def test_slots_of_one_map_share_a_statement() -> None:
    made = renderer(V6)
    operations = Piece(
        [
            FillSlots("a", "endpoints-tcp-0", 4, V6_TARGETS),
            FillSlots("b", "endpoint-chains-0", 0, ("endpoint-1/x",)),
            FillSlots("c", "endpoints-tcp-0", 6, V6_TARGETS[:1]),
            FreeSlots("", "endpoints-tcp-0", 0, 3),
        ]
    ).operations()
    lines = [line.removesuffix(" # ") for line in made.transaction(operations).splitlines()]
    assert lines == [
        "add element ip6 kube-proxy endpoint-chains-0 {",
        "0 : goto endpoint-1/x, # b",
        "}",
        "add element ip6 kube-proxy endpoints-tcp-0 {",
        "4 : fd00::1 . 80, 5 : fd00::2 . 8080, # a",
        "6 : fd00::1 . 80, # c",
        "}",
        "delete element ip6 kube-proxy endpoints-tcp-0 {",
        "0, 1, 2,",
        "}",
    ]


def test_what_is_known_is_declared_and_what_is_added_stands_within() -> None:
    """Before ``add rule`` and ``add element``, libnftables 1.0.6 reads all chains of the kernel."""
    made = renderer()
    slots, sticky = made.slot_map("endpoints-tcp-3", 64), made.affinity_set(AffinitySet("affinity-1/x", 60))
    fresh = made.slot_map("endpoints-tcp-1", 4)
    known = {container.name: container for container in (slots, sticky)}
    both = made.rules(BalancingChain.of_targets("service-1/x", "tcp", V4_TARGETS), USE)
    one = made.rules(EndpointChain("endpoint-1/x", "tcp", V4_TARGETS[0], "affinity-1/x", counter=False))
    text = made.transaction(
        Piece(
            [
                AddContainer("", fresh.kind, fresh.name, fresh.body),
                FillSlots("a", fresh.name, 0, V4_TARGETS),
                *(AddRule("a", "service-1/x", rule) for rule in both),
                *(AddRule("b", "endpoint-1/x", rule) for rule in one),
                AddClients("b", sticky.name, (Client("10.9.9.9", 5),)),
                AddElement("c", Element("elsewhere", ("10.0.0.1",))),
            ]
        ).operations(),
        lambda name: known.get(name) or (fresh if name == fresh.name else None),
    )
    lines = [line for line in text.splitlines() if line.startswith("add")]
    assert [" ".join(line.split()[:5]) for line in lines] == [
        "add table ip kube-proxy",
        f"add map ip kube-proxy {slots.name}",
        f"add set ip kube-proxy {sticky.name}",
        f"add map ip kube-proxy {fresh.name}",
        f"add map ip kube-proxy {fresh.name}",
        "add chain ip kube-proxy service-1/x",
        "add chain ip kube-proxy endpoint-1/x",
        "add chain ip kube-proxy endpoint-1/x",
        f"add set ip kube-proxy {sticky.name}",
        "add element ip kube-proxy elsewhere",  # nobody knows how it is declared
    ]


def test_table_gets_its_remark_with_its_base() -> None:
    """A remark makes libnftables 1.0.6 read all chains, so it is spelled only then."""
    made = renderer()
    hooked = AddChain("", "nat-prerouting", "type nat hook prerouting priority -100")
    assert made.transaction([hooked]).startswith("add table ip kube-proxy {")
    assert made.transaction([AddChain("", "services")]).startswith("add table ip kube-proxy\n")


def test_chains_are_emptied_before_the_first_is_deleted() -> None:
    """They may refer to each other."""
    text = renderer().transaction([RemoveChain("", "a/b"), RemoveChain("", "c/d")])
    verbs = [line.split()[0] for line in text.splitlines()]
    assert verbs == ["flush", "flush", "delete", "delete"]


def test_replacing_a_table_deletes_it_whether_or_not_it_is_there() -> None:
    lines = renderer().transaction([ReplaceTable()]).splitlines()
    assert [line.split(" {")[0] for line in lines] == [
        "add table ip kube-proxy",
        "delete table ip kube-proxy",
        "add table ip kube-proxy",
    ]


def test_clean_up_names_its_own_table_only() -> None:
    assert renderer(V6).cleanup().split("\n") == ["add table ip6 kube-proxy", "delete table ip6 kube-proxy", ""]


# --- digests -----------------------------------------------------------------------------------------------------


def test_digest_depends_on_text_and_comment_and_on_nothing_else() -> None:
    one = renderer().rules(FirewallChain("firewall-x/y", ("10.0.0.0/8",)))
    same = renderer().rules(FirewallChain("firewall-z/z", ("10.0.0.0/8",)))
    other = renderer().rules(FirewallChain("firewall-x/y", ("10.0.0.0/9",)))
    assert digest_of(one) == digest_of(same) != digest_of(other)
    assert [len(rule.digest) for rule in one] == [8, 8]


def test_another_comment_is_another_rule(copy: Path) -> None:
    """So that a changed template reaches the kernel, whatever it changes."""
    before = Renderer(RenderContext(V4), copy).rules(ExternalChain("e/x", False, "s/x", "s/x"))
    template = copy / "external.nft.j2"
    template.write_text(template.read_text().replace("# masquerade\n", "# hide the client\n"))
    after = Renderer(RenderContext(V4), copy).rules(ExternalChain("e/x", False, "s/x", "s/x"))
    assert before[0].text == after[0].text
    assert before[0].digest != after[0].digest
    assert after[0].tagged_comment == f"hide the client #{after[0].digest}"


def test_comment_of_a_rule_fits_together_with_its_digest(copy: Path) -> None:
    (copy / "firewall.nft.j2").write_text("drop # " + "é" * 200)
    [rule] = Renderer(RenderContext(V4), copy).rules(FirewallChain("f/x", ()))
    assert len(rule.tagged_comment.encode()) <= MAX_COMMENT
    assert rule.tagged_comment.endswith(f" #{rule.digest}")


# --- templates of one's own --------------------------------------------------------------------------------------


def test_changed_copy_is_used(copy: Path) -> None:
    (copy / "firewall.nft.j2").write_text("counter drop # closed\n\n")
    [rule] = Renderer(RenderContext(V4), copy).rules(FirewallChain("f/x", ()))
    assert (rule.text, rule.comment) == ("counter drop", "closed")
    assert texts(renderer(), FirewallChain("f/x", ())) == ["drop"]


def test_chain_and_set_added_to_the_base_are_part_of_it(copy: Path) -> None:
    base = copy / "base.nft.j2"
    base.write_text(
        base.read_text()
        + "\nset mine {\n  type ipv4_addr\n}\nchain my-hook {\n  type filter hook input priority 5\n  accept\n}\n"
    )
    made = Renderer(RenderContext(V4), copy).base()
    assert made.containers[-1].body == "type ipv4_addr"
    assert made.chains[-1].hook == "type filter hook input priority 5"
    assert [rule.text for rule in made.chains[-1].rules] == ["accept"]


def _firewall(folder: Path) -> None:
    Renderer(RenderContext(V4), folder).rules(FirewallChain("f/x", ("10.0.0.0/8",)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n{{ nonsense }}", r"^firewall\.nft\.j2:2: 'nonsense' is undefined$"),
        ("\n\n{{ chain.nonsense }}", r"^firewall\.nft\.j2:3: .*has no attribute 'nonsense'"),
        ("drop\n{% if chain %}\n", r"^firewall\.nft\.j2:\d: Unexpected end of template"),
        ("drop\n{{ chain | nofilter }}", r"^firewall\.nft\.j2:2: No filter named 'nofilter'"),
        ("{{ 1 + 'a' }}", r"^firewall\.nft\.j2:1: unsupported operand"),
        ("\n{{ 1 / 0 }}", r"^firewall\.nft\.j2:2: division by zero"),
        ('{% import "gone.nft.j2" as word %}', r"^/.*/gone\.nft\.j2: no such template$"),
    ],
)
def test_mistake_in_a_template_is_reported_with_name_and_line(copy: Path, text: str, message: str) -> None:
    (copy / "firewall.nft.j2").write_text(text)
    with pytest.raises(TemplateError, match=message):
        _firewall(copy)


def test_mistake_in_a_template_that_another_one_uses_is_found_there(copy: Path) -> None:
    words = copy / "words.nft.j2"
    words.write_text(words.read_text().replace("{{ to.address }}:{{ to.port }}", "\n{{ to.nonsense }}"))
    with pytest.raises(TemplateError, match=r"^words\.nft\.j2:\d+: .*has no attribute 'nonsense'"):
        Renderer(RenderContext(V4), copy).rules(BalancingChain.of_targets("s/x", "tcp", V4_TARGETS[:1]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{%- macro target(ip, to) -%}\n{{ to.address }}\n", r"^words\.nft\.j2:\d: Unexpected end of template"),
        ("\n\n{{ nonsense }}", r"^words\.nft\.j2:3: 'nonsense' is undefined$"),
        (None, r"^/.*/words\.nft\.j2: no such template$"),
    ],
)
def test_mistake_in_the_words_that_all_templates_use_is_found_at_once(
    copy: Path, text: str | None, message: str
) -> None:
    words = copy / "words.nft.j2"
    words.unlink() if text is None else words.write_text(text)
    with pytest.raises(TemplateError, match=message):
        Renderer(RenderContext(V4), copy)


def test_copy_whose_templates_import_the_words_themselves_says_the_same(copy: Path) -> None:
    """They had to, once; such copies go on working."""
    for name in ("base", "balancing", "endpoint", "external", "affinity", "element", "transaction"):
        template = copy / f"{name}.nft.j2"
        template.write_text('{% import "words.nft.j2" as word -%}\n' + template.read_text())
    words = copy / "words.nft.j2"
    words.write_text(words.read_text().replace("{{ to.address }}:{{ to.port }}", "{{ to.address }} : {{ to.port }}"))
    context = RenderContext(V4, detector=LocalDetector("cidr", "10.0.0.0/8"))
    made, plain = Renderer(context, copy), Renderer(context)
    chain = BalancingChain.of_targets("s/x", "tcp", V4_TARGETS[:1])
    assert texts(made, chain) == ["meta l4proto tcp dnat to 10.0.0.1 : 80"]
    assert texts(plain, chain) == ["meta l4proto tcp dnat to 10.0.0.1:80"]
    assert made.base() == plain.base()
    external = ExternalChain("external-x/y", True, "service-x/y", "local-x/y")
    assert texts(made, external)[0] == "ip saddr 10.0.0.0/8 goto service-x/y"


def test_missing_template_is_named(copy: Path) -> None:
    (copy / "firewall.nft.j2").unlink()
    with pytest.raises(TemplateError, match=r"^/.*/firewall\.nft\.j2: no such template$"):
        _firewall(copy)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.write_text("{% if %}"), r"^firewall\.nft\.j2:1: "),
        (lambda file: file.unlink(), r"^/.*/firewall\.nft\.j2: no such template$"),
        (lambda file: (file.unlink(), file.mkdir()), r"^/.*/firewall\.nft\.j2: no such template$"),
    ],
    ids=["broken", "missing", "no file"],
)
def test_template_that_is_not_needed_yet_shows_when_all_are_read(
    copy: Path, spoil: Callable[[Path], object], message: str
) -> None:
    """At the start, not with the first Service that needs it."""
    renderer = Renderer(RenderContext(V4), copy)
    spoil(copy / "firewall.nft.j2")
    with pytest.raises(TemplateError, match=message):
        renderer.preload()


@pytest.mark.parametrize(("make", "what"), [(None, "no such directory"), (Path.touch, "not a directory")])
def test_folder_of_templates_that_is_none_is_named(
    tmp_path: Path, make: Callable[[Path], None] | None, what: str
) -> None:
    folder = tmp_path / "templates"
    if make:
        make(folder)
    with pytest.raises(TemplateError, match=f"^templates {folder}: {what}$"):
        Renderer(RenderContext(V4), folder)


def test_template_that_is_no_text_is_named(copy: Path) -> None:
    (copy / "firewall.nft.j2").write_bytes(b"\xff\xfe drop")
    with pytest.raises(TemplateError, match=r"^/.*/firewall\.nft\.j2: .*codec can't decode"):
        _firewall(copy)


def test_line_outside_of_any_block_of_the_base_is_shown(copy: Path) -> None:
    base = copy / "base.nft.j2"
    base.write_text(base.read_text() + "\nip daddr 10.0.0.1 drop\n")
    with pytest.raises(TemplateError, match=r"^base\.nft\.j2: expected .* found 'ip daddr 10\.0\.0\.1 drop'$"):
        Renderer(RenderContext(V4), copy).base()


def test_block_that_is_never_closed_is_named(copy: Path) -> None:
    base = copy / "base.nft.j2"
    base.write_text(base.read_text() + "\nchain mine {\n  accept\n")
    with pytest.raises(TemplateError, match=r"^base\.nft\.j2: chain mine is never closed$"):
        Renderer(RenderContext(V4), copy).base()


def test_every_value_that_a_template_uses_is_given_in_every_situation() -> None:
    """Undefined values are errors, so each family, detector and switch has to render."""
    for family in Family:
        for detector in (None, LocalDetector("interface", "cni0")):
            for switch in (False, True):
                made = renderer(
                    family,
                    detector=detector,
                    masquerade_all=switch,
                    node_ports_everywhere=switch,
                    service_cidrs=() if switch else ("10.0.0.0/8",),
                )
                base = made.base()
                assert len(base.chains) == 15
                assert ("nodeport-ips" in [container.name for container in base.containers]) is not switch
                assert all(chain.rules for chain in base.chains)


def test_transaction_that_says_nothing_is_an_error(copy: Path) -> None:
    """As while an editor has emptied the file: the kernel would say yes, and nothing would have been applied."""
    (copy / "transaction.nft.j2").write_text("\n")
    with pytest.raises(TemplateError, match=r"transaction\.nft\.j2"):
        Renderer(RenderContext(V4), copy).transaction([AddChain("", "x")])
