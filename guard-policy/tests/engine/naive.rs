//! The answer to a request, worked out slowly and by the letter of the requirements.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::{Constraints, Effect, KINDS, Level, Policy, Request, Rule, Subject};

/// What the engine has to say. Where rules tie, each of them may be the one that it names.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    pub(crate) outcome: &'static str,
    /// Rules of which one is the reason of the refusal.
    pub(crate) denied: BTreeSet<String>,
    /// For each question that waits for a person, the rules of which one asks it.
    pub(crate) asks: Vec<BTreeSet<String>>,
    /// Every rule that matches, and whether it only advises; none when the addresses were refused before.
    pub(crate) matched: BTreeSet<(String, bool)>,
}

/// What each rule has counted in the session, and what it has cost.
pub(crate) type Ledger = BTreeMap<String, (u64, u64)>;

/// One reading of the request: where an address hides others, one of them.
struct Reading<'r> {
    request: &'r Request,
    hosts: Option<Vec<String>>,
    ledger: &'r Ledger,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    No,
    Unknown,
    Yes,
}

/// What one chain says about one question.
struct Answer {
    effect: Effect,
    rules: BTreeSet<String>,
    survives_dial: bool,
    soft: bool,
}

/// `R-15`: what was let through counts towards every rule that is about it, whatever its ceilings say.
pub(crate) fn count(policy: &Policy, request: &Request, ledger: &mut Ledger) {
    let empty = Ledger::new();
    for rule in policy.rules.iter().chain(&policy.managed) {
        let constraints = Constraints { max_count: None, max_cents: None, ..rule.constraints.clone() };
        let rule = Rule { constraints, ..rule.clone() };
        let about = |reading: &Reading<'_>| {
            questions(request).iter().any(|question| speaks(&rule, question, reading).is_some())
        };
        if holds(&rule, request) && readings(request, &empty).iter().any(about) {
            let used = ledger.entry(rule.id.clone()).or_default();
            used.0 += things(request);
            used.1 += request.cents.unwrap_or(0);
        }
    }
}

fn things(request: &Request) -> u64 {
    request.count.unwrap_or(1).max(request.paths.as_ref().map_or(0, Vec::len) as u64)
}

pub(crate) fn expected(policy: &Policy, request: &Request, ledger: &Ledger) -> Expected {
    let mut expected = Expected { outcome: "allow", ..Expected::default() };
    let refused = request.hosts.iter().flatten().filter_map(|host| address(host)).find_map(|address| {
        meanings(address).into_iter().find_map(|address| refused(policy, address, None, None, &[]))
    });
    if let Some(name) = refused {
        expected.outcome = "deny";
        expected.denied.insert(name);
        return expected;
    }
    for rule in policy.rules.iter().chain(&policy.managed) {
        let about = |reading: &Reading<'_>| {
            questions(request).iter().any(|question| speaks(rule, question, reading).is_some())
        };
        if holds(rule, request) && readings(request, ledger).iter().any(about) {
            expected.matched.insert((rule.id.clone(), rule.level == Level::Advisory));
        }
    }
    let dial = if request.space == Some("alpha") { policy.autonomy } else { None };
    for question in questions(request) {
        let mut answers: Vec<Answer> = Vec::new();
        if let Some(mut answer) = worst(Chain::Policy, policy, &question, request, ledger) {
            if answer.effect == Effect::Prompt && dial == Some("actFreely") && !answer.survives_dial {
                answer.effect = Effect::Allow;
            }
            // `C-092`: a soft denial yields to somebody who says who they are and why.
            if answer.effect == Effect::Deny
                && answer.soft
                && request.lifted.is_some_and(|(_, why)| why != " ")
            {
                answer.effect = Effect::Allow;
            }
            answers.push(answer);
        }
        if let (Question::Class(_), Some("proposeOnly")) = (&question, dial) {
            let rules = BTreeSet::from(["autonomy:proposeOnly".to_owned()]);
            answers.push(Answer { effect: Effect::Deny, rules, survives_dial: true, soft: false });
        }
        answers.extend(worst(Chain::Managed, policy, &question, request, ledger));
        if let Question::Command(command) = question
            && request.mode == Some("review")
            && policy.net.iter().any(|prefix| starts(command, prefix))
        {
            let rules = BTreeSet::from(["net:review".to_owned()]);
            answers.push(Answer { effect: Effect::Deny, rules, survives_dial: true, soft: false });
        }
        for answer in answers {
            match answer.effect {
                Effect::Allow => {}
                Effect::Prompt => expected.asks.push(answer.rules),
                Effect::Deny => expected.denied.extend(answer.rules),
            }
        }
    }
    if !expected.denied.is_empty() {
        expected.outcome = "deny";
        expected.asks.clear();
    } else if !expected.asks.is_empty() {
        expected.outcome = "defer_for_approval";
        if !request.approver {
            expected.outcome = "deny";
            expected.denied = expected.asks.remove(0);
            expected.asks.clear();
        }
    }
    expected
}

enum Question<'r> {
    Class(&'static str),
    Command(&'r str),
}

fn questions(request: &Request) -> Vec<Question<'_>> {
    let classes = request.classes.iter().map(|class| Question::Class(class));
    classes.chain(request.commands.iter().flatten().map(|command| Question::Command(command))).collect()
}

/// `C-101`: two chains of rules; only the policy's ends in the built-in defaults.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chain {
    Policy,
    Managed,
}

/// The worst answer over every reading.
fn worst(
    chain: Chain,
    policy: &Policy,
    question: &Question<'_>,
    request: &Request,
    ledger: &Ledger,
) -> Option<Answer> {
    let mut worst: Option<Answer> = None;
    for reading in readings(request, ledger) {
        let Some(answer) = resolve(chain, policy, question, &reading) else { continue };
        worst = Some(match worst {
            None => answer,
            Some(known) if (answer.effect, !answer.soft) > (known.effect, !known.soft) => answer,
            Some(mut known) => {
                if (known.effect, known.soft) == (answer.effect, answer.soft) {
                    known.rules.extend(answer.rules);
                    known.survives_dial |= answer.survives_dial;
                }
                known
            }
        });
    }
    worst
}

/// `C-031` to `C-035`, `C-059`: scope by scope, in a scope by prefix, by constraints, by restriction.
fn resolve(chain: Chain, policy: &Policy, question: &Question<'_>, reading: &Reading<'_>) -> Option<Answer> {
    let rules = if chain == Chain::Policy { &policy.rules } else { &policy.managed };
    for kind in KINDS {
        let mut here: Vec<(&Rule, Fit)> = Vec::new();
        for rule in rules {
            if rule.scope.0 == kind
                && rule.level != Level::Advisory
                && holds(rule, reading.request)
                && let Some(fit) = speaks(rule, question, reading)
            {
                here.push((rule, fit));
            }
        }
        let longest = here.iter().map(|(rule, _)| prefix_length(rule)).max();
        here.retain(|(rule, _)| Some(prefix_length(rule)) == longest);
        if here.iter().any(|(rule, _)| !rule.constraints.is_empty()) {
            here.retain(|(rule, _)| !rule.constraints.is_empty());
        }
        let says = |(rule, fit): &(&Rule, Fit)| match fit {
            Fit::Unknown => Effect::Prompt,
            _ => rule.effect,
        };
        if let Some(effect) = here.iter().map(says).max() {
            here.retain(|candidate| says(candidate) == effect);
            // `C-094`: of denials the one that nobody lifts.
            if effect == Effect::Deny && here.iter().any(|(rule, _)| rule.level == Level::Strict) {
                here.retain(|(rule, _)| rule.level == Level::Strict);
            }
            return Some(Answer {
                soft: chain == Chain::Policy
                    && effect == Effect::Deny
                    && here.iter().all(|(rule, _)| rule.level == Level::Soft),
                effect,
                rules: here.iter().map(|(rule, _)| rule.id.clone()).collect(),
                survives_dial: here.iter().any(|(rule, _)| rule.effect == Effect::Deny),
            });
        }
    }
    match (chain, question) {
        (Chain::Policy, Question::Class(class)) => {
            let asks = ["fileDelete", "gitPush", "prCreate", "prPublish", "vendorSyncWrite"].contains(class);
            let effect = if asks { Effect::Prompt } else { Effect::Allow };
            let rules = BTreeSet::from([format!("builtin:{class}")]);
            Some(Answer { effect, rules, survives_dial: false, soft: false })
        }
        _ => None,
    }
}

fn prefix_length(rule: &Rule) -> usize {
    match rule.subject {
        Subject::Class(_) => 0,
        Subject::Command(prefix) => prefix.len(),
    }
}

fn holds(rule: &Rule, request: &Request) -> bool {
    let in_scope = rule.scope.0 == "everywhere" || request.principal(rule.scope.0) == Some(rule.scope.1);
    in_scope && rule.expired != Some(true)
}

/// Whether a rule is about a question and not ruled out; `Fit::Unknown` where silence keeps it in doubt.
fn speaks(rule: &Rule, question: &Question<'_>, reading: &Reading<'_>) -> Option<Fit> {
    let about = match (&rule.subject, question) {
        (Subject::Class(class), Question::Class(asked)) => class == asked,
        (Subject::Command(prefix), Question::Command(command)) => starts(command, prefix),
        _ => false,
    };
    let used = if rule.constraints.per_action { None } else { reading.ledger.get(&rule.id).copied() };
    let fit = fit(&rule.constraints, rule.effect, reading, used.unwrap_or_default());
    (about && fit != Fit::No).then_some(fit)
}

/// `C-060` to `C-062`, `R-13`, `R-14`
fn fit(constraints: &Constraints, effect: Effect, reading: &Reading<'_>, used: (u64, u64)) -> Fit {
    let permits = effect == Effect::Allow;
    let request = reading.request;
    let mut facets: Vec<Option<bool>> = Vec::new();
    if !constraints.paths.is_empty() {
        let test =
            |path: &&'static str| in_list(&constraints.paths, permits, &[&clean(path), path], path_glob);
        facets.push(request.paths.as_ref().map(|paths| meets(permits, paths, test)));
    }
    if !constraints.refs.is_empty() {
        let test = |name: &&'static str| in_list(&constraints.refs, permits, &[&full(name)], ref_glob);
        facets.push(request.refs.as_ref().map(|refs| meets(permits, refs, test)));
    }
    if !constraints.hosts.is_empty() {
        let test = |host: &String| in_list(&constraints.hosts, permits, &[host], host_pattern);
        facets.push(reading.hosts.as_ref().map(|hosts| meets(permits, hosts, test)));
    }
    if !constraints.commands.is_empty() {
        let test = |command: &&'static str| constraints.commands.iter().any(|prefix| starts(command, prefix));
        facets.push(request.commands.as_ref().map(|commands| meets(permits, commands, test)));
    }
    if let Some(max) = constraints.max_count {
        let sum = used.0 + things(request);
        facets.push(Some(if permits { sum <= max } else { sum > max }));
    }
    if let Some(max) = constraints.max_cents {
        let sum = request.cents.map(|cents| used.1 + cents);
        facets.push(sum.map(|sum| if permits { sum <= max } else { sum > max }));
    }
    if facets.contains(&Some(false)) {
        Fit::No
    } else if facets.contains(&None) {
        Fit::Unknown
    } else {
        Fit::Yes
    }
}

fn meets<V>(permits: bool, values: &[V], test: impl Fn(&V) -> bool) -> bool {
    if permits { values.iter().all(test) } else { values.iter().any(test) }
}

/// `forms`: the canonical spelling first. What restricts looks at all of them, what permits at the first.
fn in_list(patterns: &[&str], permits: bool, forms: &[&str], matches: fn(&str, &str) -> bool) -> bool {
    let (mut positives, mut included, mut excluded) = (0, false, false);
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            None => {
                positives += 1;
                included |= forms.iter().take(if permits { 1 } else { 9 }).any(|form| matches(pattern, form));
            }
            Some(pattern) => {
                excluded |= forms.iter().take(if permits { 9 } else { 1 }).any(|form| matches(pattern, form));
            }
        }
    }
    (included || positives == 0) && !excluded
}

fn starts(command: &str, prefix: &str) -> bool {
    command == prefix
        || [' ', '\t', '\n'].iter().any(|blank| command.starts_with(&format!("{prefix}{blank}")))
}

fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    format!("{}{}", if path.starts_with('/') { "/" } else { "" }, kept.join("/"))
}

/// `R-23`, `R-63`
fn path_glob(pattern: &str, path: &str) -> bool {
    if !pattern.starts_with("**") && pattern.starts_with('/') != path.starts_with('/') {
        return false;
    }
    let split = |text: &str| {
        let text = text.strip_prefix('/').unwrap_or(text);
        text.split('/').filter(|_| !text.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    segments(&split(pattern), &split(path))
}

fn segments(pattern: &[String], value: &[String]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((first, rest)) if first == "**" => (0..=value.len()).any(|skip| segments(rest, &value[skip..])),
        Some((first, rest)) => value
            .split_first()
            .is_some_and(|(head, tail)| within(first.as_bytes(), head.as_bytes()) && segments(rest, tail)),
    }
}

fn within(pattern: &[u8], segment: &[u8]) -> bool {
    match (pattern.split_first(), segment.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((b'*', rest)), None) => within(rest, segment),
        (Some((b'*', rest)), Some((_, tail))) => within(rest, segment) || within(pattern, tail),
        (Some((b'?', rest)), Some((_, tail))) => within(rest, tail),
        (Some((wanted, rest)), Some((found, tail))) => wanted == found && within(rest, tail),
        (Some(_), None) => false,
    }
}

/// `R-25`: the whole name of a ref.
fn full(name: &str) -> String {
    if name.starts_with("refs/") || name.starts_with("**") {
        name.to_owned()
    } else {
        format!("refs/heads/{}", name.strip_prefix("heads/").unwrap_or(name))
    }
}

fn ref_glob(pattern: &str, name: &str) -> bool {
    path_glob(&full(pattern), &full(name))
}

/// `R-24`
fn host_pattern(pattern: &str, host: &str) -> bool {
    if pattern == "**" {
        return true;
    }
    if let Some(address) = address(host) {
        return cidr_holds(pattern, address);
    }
    let host = host.trim_end_matches('.').to_lowercase();
    match pattern.strip_prefix("*.") {
        Some(parent) => host.ends_with(&format!(".{parent}")),
        None => host == pattern,
    }
}

fn address(host: &str) -> Option<IpAddr> {
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Whether a CIDR, or a bare address, holds an address; each family by itself.
pub(crate) fn cidr_holds(cidr: &str, address: IpAddr) -> bool {
    let (network, length) = cidr.split_once('/').unwrap_or((cidr, "128"));
    let (Ok(network), Ok(length)) = (network.parse::<IpAddr>(), length.parse::<u32>()) else { return false };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let shift = 32 - length.min(32);
            shift == 32 || u32::from(network) >> shift == u32::from(address) >> shift
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let shift = 128 - length;
            shift == 128 || u128::from(network) >> shift == u128::from(address) >> shift
        }
        _ => false,
    }
}

fn length(cidr: &str) -> u32 {
    match cidr.split_once('/') {
        Some((_, length)) => length.parse().expect("a length"),
        None if cidr.contains(':') => 128,
        None => 32,
    }
}

/// The address and every IPv4 address that can be meant by it.
pub(crate) fn meanings(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(outer) = address.to_canonical() else { return vec![address.to_canonical()] };
    let octets = outer.octets();
    let inner = |at: [usize; 4], mask: u8| {
        IpAddr::V4(Ipv4Addr::new(
            octets[at[0]] ^ mask,
            octets[at[1]] ^ mask,
            octets[at[2]] ^ mask,
            octets[at[3]] ^ mask,
        ))
    };
    let mut all = vec![IpAddr::V6(outer)];
    let starts = |prefix: &str| cidr_holds(prefix, IpAddr::V6(outer));
    if starts("::/96") || starts("64:ff9b::/96") {
        all.push(inner([12, 13, 14, 15], 0));
    }
    if starts("64:ff9b:1::/48") {
        all.push(inner([6, 7, 9, 10], 0));
        all.push(inner([12, 13, 14, 15], 0));
    }
    if starts("2002::/16") {
        all.push(inner([2, 3, 4, 5], 0));
    }
    if starts("2001::/32") {
        all.push(inner([4, 5, 6, 7], 0));
        all.push(inner([12, 13, 14, 15], 0xff));
    }
    all
}

fn readings<'r>(request: &'r Request, ledger: &'r Ledger) -> Vec<Reading<'r>> {
    let mut all: Vec<Option<Vec<String>>> = vec![request.hosts.as_ref().map(|_| Vec::new())];
    for host in request.hosts.iter().flatten() {
        let meant: Vec<String> = match address(host) {
            Some(address) => meanings(address).iter().map(IpAddr::to_string).collect(),
            None => vec![(*host).to_owned()],
        };
        let with = |known: &Option<Vec<String>>, one: &String| {
            known.clone().map(|mut hosts| {
                hosts.push(one.clone());
                hosts
            })
        };
        all = all.iter().flat_map(|known| meant.iter().map(move |one| with(known, one))).collect();
    }
    all.into_iter().map(|hosts| Reading { request, hosts, ledger }).collect()
}

/// The built-in ranges, by the letter of their documentation.
const RANGES: [(&str, &str); 23] = [
    ("metadata", "169.254.169.254"),
    ("metadata", "169.254.169.253"),
    ("metadata", "169.254.170.2"),
    ("metadata", "169.254.170.23"),
    ("metadata", "100.100.100.200"),
    ("metadata", "168.63.129.16"),
    ("metadata", "192.0.0.192"),
    ("metadata", "fd00:ec2::254"),
    ("metadata", "fd00:ec2::23"),
    ("metadata", "fd20:ce::254"),
    ("link_local", "169.254.0.0/16"),
    ("link_local", "fe80::/10"),
    ("private", "10.0.0.0/8"),
    ("private", "172.16.0.0/12"),
    ("private", "192.168.0.0/16"),
    ("private", "198.18.0.0/15"),
    ("private", "fec0::/10"),
    ("cgnat", "100.64.0.0/10"),
    ("unique_local", "fc00::/7"),
    ("multicast", "224.0.0.0/4"),
    ("multicast", "ff00::/8"),
    ("multicast", "255.255.255.255"),
    ("loopback", "127.0.0.0/8"),
];

pub(crate) fn is_loopback(address: IpAddr) -> bool {
    let unspecified = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) || cidr_holds("0.0.0.0/8", address);
    address.is_loopback() || unspecified
}

/// The name of the range that refuses one address, taken as it is, at a port.
pub(crate) fn refused(
    policy: &Policy,
    address: IpAddr,
    port: Option<u16>,
    proto: Option<&str>,
    resolvers: &[IpAddr],
) -> Option<String> {
    let display = |cidr: &str| {
        let whole = if cidr.contains(':') { 128 } else { 32 };
        if cidr.contains('/') { cidr.to_owned() } else { format!("{cidr}/{whole}") }
    };
    let longest = |ranges: &[&'static str]| {
        ranges.iter().copied().filter(|range| cidr_holds(range, address)).max_by_key(|range| length(range))
    };
    if let Some(range) = longest(&policy.managed_deny) {
        return Some(format!("network:{}", display(range)));
    }
    let built_in = RANGES
        .iter()
        .filter(|(name, range)| *name != "loopback" && cidr_holds(range, address))
        .max_by_key(|(_, range)| length(range));
    let written = longest(&policy.network.deny);
    // A hole opens a built-in range that is as long as itself or shorter, and a written one that is shorter.
    let opens = |hole: u32| {
        built_in.is_none_or(|(_, range)| hole >= length(range))
            && written.is_none_or(|range| hole > length(range))
    };
    let fits = |cidr: &str, ports: &[u16], wanted: Option<&str>| {
        cidr_holds(cidr, address)
            && (ports.is_empty() || port.is_some_and(|port| ports.contains(&port)))
            // What has no port is no whole packet of that protocol.
            && (wanted.is_none() || (wanted == proto && port.is_some()))
            && opens(length(cidr))
    };
    let by_hole = !policy.holes_forbidden
        && policy.network.allow.iter().any(|hole| fits(hole.cidr, &hole.ports, hole.proto));
    let by_resolver = !policy.network.resolvers_closed
        && proto.is_some()
        && resolvers.iter().any(|resolver| fits(&resolver.to_string(), &[53], None));
    let name = match (built_in, written) {
        (Some((name, range)), Some(other)) if length(other) < length(range) => {
            format!("network:{name}")
        }
        (_, Some(other)) => format!("network:{}", display(other)),
        (Some((name, _)), None) => format!("network:{name}"),
        (None, None) => return None,
    };
    (!by_hole && !by_resolver).then_some(name)
}

/// What the classes say about a connection to one address, taken as it is.
pub(crate) fn egress(policy: &Policy, request: &Request, address: IpAddr) -> Effect {
    let ledger = Ledger::new();
    let reading = Reading { request, hosts: Some(vec![address.to_string()]), ledger: &ledger };
    let question = Question::Class("networkEgress");
    let dial = if request.space == Some("alpha") { policy.autonomy } else { None };
    let mut effect = Effect::Allow;
    if let Some(answer) = resolve(Chain::Policy, policy, &question, &reading) {
        let cleared = answer.effect == Effect::Prompt && dial == Some("actFreely") && !answer.survives_dial;
        effect = effect.max(if cleared { Effect::Allow } else { answer.effect });
    }
    if let Some(answer) = resolve(Chain::Managed, policy, &question, &reading) {
        effect = effect.max(answer.effect);
    }
    if dial == Some("proposeOnly") { Effect::Deny } else { effect }
}
