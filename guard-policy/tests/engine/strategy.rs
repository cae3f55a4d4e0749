//! Small worlds, in which rules and requests meet often.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::model::{Constraints, Effect, Hole, Level, Network, Policy, Request, Rule, Scope, Subject};

const CLASSES: [&str; 4] = ["fileDelete", "gitPush", "networkEgress", "processSpawn"];
const SCOPES: [Scope; 8] = [
    Scope("space", "alpha"),
    Scope("space", "beta"),
    Scope("agent", "research"),
    Scope("workspace", "acme"),
    Scope("mode", "review"),
    Scope("everywhere", ""),
    Scope("everywhere", ""),
    Scope("agent", "other"),
];
const PREFIXES: [&str; 4] = ["git", "git push", "git push origin", "ls"];
const COMMANDS: [&str; 6] = ["git", "git push", "git push origin main", "git pushx", "git  push", "ls\t-l"];
const PATH_PATTERNS: [&str; 12] = [
    "**",
    "src/**",
    "src/*",
    "!src/b/**",
    "**/.env",
    "!**/.env",
    "/etc/**",
    "!/etc/passwd",
    "*",
    "?rc/**/c",
    "target/**",
    "/**",
];
const PATHS: [&str; 11] = [
    "src",
    "src/a",
    "src/b/c",
    "./src//a",
    "src/../.env",
    ".env",
    "a/.env",
    "/etc/passwd",
    "/etc",
    "target/x",
    "/srv/../etc/passwd",
];
const REF_PATTERNS: [&str; 10] = [
    "**",
    "!main",
    "main",
    "feature/*",
    "feature/**",
    "refs/tags/**",
    "!refs/tags/v1",
    "refs/heads/**",
    "heads/main",
    "*",
];
const REFS: [&str; 7] =
    ["main", "refs/heads/main", "heads/main", "feature/x", "feature/x/y", "refs/tags/v1", "refs/tags/main"];
const HOST_PATTERNS: [&str; 11] = [
    "**",
    "*.internal",
    "!*.internal",
    "internal",
    "example.org",
    "!example.org",
    "203.0.113.0/24",
    "!203.0.113.5",
    "2001:db8::/32",
    "::/0",
    "0.0.0.0/0",
];
const HOSTS: [&str; 9] = [
    "db.internal",
    "a.b.INTERNAL.",
    "internal",
    "example.org",
    "203.0.113.5",
    "203.0.113.9",
    "::ffff:203.0.113.5",
    "2001:db8::1",
    "198.51.100.1",
];
/// Addresses that hide others; a request has at most one of them here.
const FOLDED: [&str; 5] =
    ["64:ff9b::cb00:7105", "2002:cb00:7105::1", "64:ff9b:1:cb00:71:500::", "64:ff9b::a00:1", "10.0.0.1"];
/// Every address that a rule or a hole of these worlds draws a line at.
pub(crate) const PLACES: [&str; 16] = [
    "10.0.0.0/8",
    "10.9.0.0/16",
    "10.9.8.7",
    "169.254.0.0/16",
    "169.254.169.254",
    "198.51.100.0/24",
    "198.51.100.7",
    "0.0.0.0/0",
    "::/0",
    "2001:db8::/32",
    "2001:db8::1",
    "fc00::/7",
    "127.0.0.1",
    "192.0.2.0/24",
    "fd00:ec2::254",
    "203.0.113.0/24",
];

fn some_of(values: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(values, 0..=most)
}

fn facet(values: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<&'static str>>> {
    option::weighted(0.7, some_of(values, 2))
}

fn constraints() -> impl Strategy<Value = Constraints> {
    let list = |values| prop_oneof![3 => Just(Vec::new()), 1 => some_of(values, 2)];
    let ceiling = || prop_oneof![9 => Just(None), 1 => select(vec![Some(0_u64), Some(1), Some(2)])];
    let lists = (list(&PATH_PATTERNS), list(&REF_PATTERNS), list(&HOST_PATTERNS), list(&PREFIXES));
    (lists, ceiling(), ceiling(), any::<bool>()).prop_map(
        |((paths, refs, hosts, commands), max_count, max_cents, per_action)| Constraints {
            paths,
            refs,
            hosts,
            commands,
            max_count,
            max_cents,
            per_action,
        },
    )
}

fn effect() -> impl Strategy<Value = Effect> {
    select(vec![Effect::Allow, Effect::Prompt, Effect::Deny])
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![6 => Just(Level::Strict), 1 => Just(Level::Soft), 2 => Just(Level::Advisory)]
}

fn rule() -> impl Strategy<Value = Rule> {
    let subject = prop_oneof![
        3 => select(&CLASSES[..]).prop_map(Subject::Class),
        1 => select(&PREFIXES[..]).prop_map(Subject::Command),
    ];
    let expired = prop_oneof![8 => Just(None), 1 => Just(Some(true)), 1 => Just(Some(false))];
    (select(&SCOPES[..]), subject, effect(), level(), constraints(), expired).prop_map(
        |(scope, subject, effect, level, constraints, expired)| Rule {
            id: String::new(),
            scope,
            subject,
            effect,
            level,
            constraints,
            expired,
        },
    )
}

fn rules(name: &'static str, most: usize) -> impl Strategy<Value = Vec<Rule>> {
    vec(rule(), 0..=most).prop_map(move |mut rules| {
        for (index, rule) in rules.iter_mut().enumerate() {
            rule.id = format!("{name}-{index}");
        }
        rules
    })
}

fn dial() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some("proposeOnly")),
        1 => Just(Some("actWithApproval")),
        3 => Just(Some("actFreely")),
    ]
}

pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    let net = prop_oneof![3 => Just(Vec::new()), 1 => some_of(&PREFIXES, 1)];
    (rules("rule", 6), net, dial(), rules("managed", 2)).prop_map(|(rules, net, autonomy, managed)| Policy {
        rules,
        net,
        autonomy,
        managed,
        ..Policy::default()
    })
}

fn who() -> impl Strategy<Value = Request> {
    let part = |name: &'static str| prop_oneof![4 => Just(Some(name)), 1 => Just(None)];
    (part("alpha"), part("research"), part("acme"), part("review")).prop_map(
        |(space, agent, workspace, mode)| Request { space, agent, workspace, mode, ..Request::default() },
    )
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    let amount = || prop_oneof![2 => Just(None), 1 => (0_u64..4).prop_map(Some)];
    let lists = (facet(&PATHS), facet(&REFS), facet(&HOSTS), facet(&COMMANDS));
    let folded = prop_oneof![4 => Just(None), 1 => select(&FOLDED[..]).prop_map(Some)];
    let lifted = prop_oneof![
        4 => Just(None),
        2 => Just(Some(("alice", "the release waits"))),
        1 => Just(Some(("alice", " "))),
    ];
    let rest = (amount(), amount(), prop::bool::weighted(0.8), lifted);
    (who(), subsequence(&CLASSES[..], 0..=3), lists, folded, rest).prop_map(
        |(who, classes, (paths, refs, hosts, commands), folded, (count, cents, approver, lifted))| {
            let hosts = hosts.map(|mut hosts| {
                hosts.extend(folded);
                hosts
            });
            Request { classes, paths, refs, hosts, commands, count, cents, approver, lifted, ..who }
        },
    )
}

/// Acts of one session, one after another.
pub(crate) fn session() -> impl Strategy<Value = Vec<Request>> {
    vec(request(), 1..8)
}

/// Who asks, without an act.
pub(crate) fn principal() -> impl Strategy<Value = Request> {
    who()
}

/// Policies whose rules are all about addresses.
pub(crate) fn address_policy() -> impl Strategy<Value = Policy> {
    let hosts = prop_oneof![
        4 => subsequence(&PLACES[..], 1..=2),
        1 => Just(vec!["**"]),
        1 => Just(vec!["**", "!198.51.100.0/24"]),
        1 => Just(vec!["!10.9.0.0/16"]),
        1 => Just(Vec::new()),
    ];
    let rule =
        (select(&SCOPES[..]), effect(), level(), hosts).prop_map(|(scope, effect, level, hosts)| Rule {
            id: String::new(),
            scope,
            subject: Subject::Class("networkEgress"),
            effect,
            level,
            constraints: Constraints { hosts, ..Constraints::default() },
            expired: None,
        });
    let named = |name: &'static str, rules: Vec<Rule>| {
        let name = move |(index, rule): (usize, Rule)| Rule { id: format!("{name}-{index}"), ..rule };
        rules.into_iter().enumerate().map(name).collect::<Vec<_>>()
    };
    let rule = rule.boxed();
    (vec(rule.clone(), 0..4), vec(rule, 0..2), network(), some_of(&PLACES, 1), any::<bool>(), dial())
        .prop_map(move |(rules, managed, network, managed_deny, forbidden, autonomy)| Policy {
            rules: named("rule", rules),
            managed: named("managed", managed),
            network,
            managed_deny: if forbidden { managed_deny } else { Vec::new() },
            holes_forbidden: forbidden,
            autonomy,
            ..Policy::default()
        })
}

fn network() -> impl Strategy<Value = Network> {
    let hole = (
        select(&PLACES[..]),
        prop_oneof![Just(vec![]), Just(vec![443]), Just(vec![53, 80])],
        prop_oneof![Just(None), Just(Some("tcp")), Just(Some("udp"))],
    )
        .prop_map(|(cidr, ports, proto)| Hole { cidr, ports, proto });
    (some_of(&PLACES, 2), vec(hole, 0..3), prop::bool::weighted(0.2))
        .prop_map(|(deny, allow, resolvers_closed)| Network { deny, allow, resolvers_closed })
}
