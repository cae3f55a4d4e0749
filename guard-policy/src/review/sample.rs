//! Acts that a rule is about, made from its own words; what tells two policies apart is looked for among them.

use std::collections::BTreeSet;

use guard_common::{ActionClass, Effect};

use crate::policy::{Constraints, Policy, Rule, Scope, Subject};
use crate::request::{Action, Principal, Request};
use crate::value::{ActPath, Host, HostPattern, Ref};

/// Most values of one facet that are tried with each other.
const MOST: usize = 24;

/// Values of each facet; `None` is silence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    paths: Vec<Option<ActPath>>,
    refs: Vec<Option<Ref>>,
    hosts: Vec<Option<Host>>,
    counts: Vec<Option<u64>>,
    cents: Vec<Option<u64>>,
}

/// A value that a pattern of paths or refs covers.
fn fill(pattern: &str) -> String {
    let pattern = pattern.trim_start_matches('!');
    let mut value = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find(['*', '?']) {
        value.push_str(&rest[..at]);
        value.push('x');
        rest = rest[at..].trim_start_matches(['*', '?']);
    }
    value + rest
}

fn host(pattern: &HostPattern) -> Option<Host> {
    let written = pattern.written().trim_start_matches('!');
    match pattern.network() {
        Some(network) => Some(Host::address(network.address)),
        None if written == "**" => Host::parse("example.org").ok(),
        None => Host::parse(&written.replace('*', "x")).ok(),
    }
}

impl Values {
    /// The values that one rule speaks about, and one of each facet that it does not.
    pub(crate) fn of(constraints: &Constraints) -> Self {
        let mut values = Self::default();
        values.add(constraints);
        values
    }

    fn add(&mut self, constraints: &Constraints) {
        self.paths.extend(constraints.paths.iter().map(|path| ActPath::parse(&fill(path.written())).ok()));
        self.refs.extend(constraints.refs.iter().map(|name| Ref::parse(&fill(name.written())).ok()));
        self.hosts.extend(constraints.hosts.iter().map(host));
        if let Some(max) = constraints.max_count {
            self.counts.extend([Some(max), Some(max.saturating_add(1))]);
        }
        if let Some(max) = constraints.max_cents {
            self.cents.extend([Some(max), Some(max.saturating_add(1))]);
        }
    }

    fn others(&mut self) {
        if !self.paths.is_empty() {
            self.paths.extend([ActPath::parse("some/other/file").ok(), None]);
        }
        if !self.refs.is_empty() {
            self.refs.extend([Ref::parse("some-other-branch").ok(), None]);
        }
        if !self.hosts.is_empty() {
            self.hosts.extend([Host::parse("other.example").ok(), None]);
        }
        if !self.cents.is_empty() {
            self.cents.push(None);
        }
    }

    /// Every combination, a bounded number of them.
    pub(crate) fn actions(&self, class: Option<ActionClass>, command: Option<&str>) -> Vec<Action> {
        fn some<T: Clone>(values: &[Option<T>]) -> Vec<Option<T>> {
            if values.is_empty() { vec![None] } else { values.iter().take(MOST).cloned().collect() }
        }
        let mut actions = Vec::new();
        for path in some(&self.paths) {
            for name in some(&self.refs) {
                for host in some(&self.hosts) {
                    for count in some(&self.counts) {
                        for cents in some(&self.cents) {
                            let mut action = Action::of(class);
                            action.paths = path.clone().map(|path| vec![path]);
                            action.refs = name.clone().map(|name| vec![name]);
                            action.hosts = host.clone().map(|host| vec![host]);
                            action.commands = command.map(|command| vec![command.to_owned()]);
                            (action.count, action.cents) = (count, cents);
                            actions.push(action);
                        }
                    }
                }
            }
        }
        actions
    }
}

/// A principal that acts in these scopes.
pub(crate) fn principal<'a>(scopes: impl IntoIterator<Item = &'a Scope>) -> Principal {
    let mut principal = Principal::default();
    for scope in scopes {
        match scope {
            Scope::Space(id) => principal.space = Some(id.clone()),
            Scope::Agent(id) => principal.agent = Some(id.clone()),
            Scope::Workspace(id) => principal.workspace = Some(id.clone()),
            Scope::Mode(id) => principal.mode = Some(id.clone()),
            Scope::Everywhere => {}
        }
    }
    principal
}

/// An act that a rule applies to, if one can be made from its words.
pub(crate) fn applies(rule: &Rule) -> Option<Action> {
    let (class, command) = match &rule.subject {
        Subject::Class(class) => (Some(*class), None),
        Subject::Command(prefix) => (None, Some(prefix.as_str())),
    };
    let command = command.or_else(|| rule.constraints.commands.first().map(String::as_str));
    Values::of(&rule.constraints).actions(class, command).into_iter().find(|action| rule.speaks_about(action))
}

/// Requests among which a difference between these policies shows, if their rules differ in what they say.
pub(crate) fn requests(policies: &[&Policy]) -> Vec<Request> {
    let rules: Vec<&Rule> =
        policies.iter().flat_map(|policy| policy.rules().iter().chain(policy.managed_rules())).collect();
    let mut principals: BTreeSet<Vec<&Scope>> = BTreeSet::from([Vec::new()]);
    let autonomy: Vec<Scope> = policies
        .iter()
        .flat_map(|policy| policy.parts().autonomy.keys().map(|space| Scope::Space(space.clone())))
        .collect();
    let modes: Vec<Scope> = policies
        .iter()
        .flat_map(|policy| policy.parts().nets.keys().map(|mode| Scope::Mode(mode.clone())))
        .collect();
    let scopes: BTreeSet<&Scope> =
        rules.iter().map(|rule| &rule.scope).chain(&autonomy).chain(&modes).collect();
    for scope in &scopes {
        principals.insert(vec![scope]);
    }
    // Two scopes of different kinds can hold for one act, and the more specific decides.
    for (a, b) in scopes.iter().flat_map(|a| scopes.iter().map(move |b| (*a, *b))).take(2_000) {
        if a.rank() < b.rank() && *b != Scope::Everywhere {
            principals.insert(vec![a, b]);
        }
    }
    let mut subjects: Vec<(Option<ActionClass>, Option<String>)> =
        ActionClass::ALL.iter().map(|class| (Some(*class), None)).collect();
    let prefixes = rules.iter().filter_map(|rule| match &rule.subject {
        Subject::Command(prefix) => Some(prefix),
        Subject::Class(_) => None,
    });
    let nets = policies.iter().flat_map(|policy| policy.parts().nets.values().flatten());
    let prefixes: BTreeSet<&String> = prefixes.chain(nets).collect();
    subjects.extend(prefixes.into_iter().map(|prefix| (None, Some(prefix.clone()))));
    let mut requests = Vec::new();
    for (class, command) in subjects {
        let about = |rule: &&&Rule| match &rule.subject {
            Subject::Class(other) => Some(*other) == class,
            Subject::Command(other) => command.as_ref() == Some(other),
        };
        let mut values = Values::default();
        let mut commands = BTreeSet::new();
        for rule in rules.iter().filter(about) {
            values.add(&rule.constraints);
            commands.extend(rule.constraints.commands.iter().map(String::as_str));
        }
        values.others();
        let mut actions = values.actions(class, command.as_deref());
        for command in commands {
            actions.extend(values.actions(class, Some(command)));
        }
        for principal in principals.iter().map(|scopes| principal(scopes.iter().copied())) {
            requests.extend(actions.iter().map(|action| {
                let mut request = Request::new(principal.clone(), action.clone());
                request.derive();
                request
            }));
            if requests.len() > 200_000 {
                return requests;
            }
        }
    }
    requests
}

/// Whether a rule's effect is one that lets acts through.
pub(crate) fn permits(rule: &Rule) -> bool {
    rule.effect == Effect::Allow
}
