//! Which rules can match, without looking at the others.
//!
//! A rule stands below its scope and its subject, and below the values that one of its facets names: a rule about
//! `refs: feature/**` is met at the prefix `refs/heads/feature` of a ref. What has no such value (`**`, a list of
//! only negatives, a rule without constraints) is looked at each time. The index may offer a rule that does not
//! match; it never keeps one back that does, since a request that is silent about the facet, or says that it
//! touches none, is offered all of them (`R-13`, `R-14`).

use foldhash::HashMap;
use guard_common::ActionClass;
use guard_common::address::{Address, unfold};

use super::{Constraints, Rule, Scope, Subject};
use crate::request::{Principal, Request};
use crate::value::{HostKey, Network, Pattern, Target, bytes};

/// The rules of one chain, found by what they are about.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By kind of scope, then by its name.
    named: [HashMap<String, Bucket>; 4],
    everywhere: Bucket,
}

/// The rules of one scope.
#[derive(Debug, Default)]
struct Bucket {
    classes: [Facets; 13],
    commands: HashMap<String, Vec<u32>>,
}

/// The rules about one class in one scope, below the facet that tells most about them.
#[derive(Debug, Default)]
struct Facets {
    always: Vec<u32>,
    refs: Anchored,
    hosts: Anchored,
    /// The ranges among the hosts, and their lengths.
    ranges: HashMap<Network, Vec<u32>>,
    lengths: Vec<u8>,
    paths: Anchored,
}

/// Rules below the values that they name.
#[derive(Debug, Default)]
struct Anchored {
    by: HashMap<String, Vec<u32>>,
    all: Vec<u32>,
}

impl Anchored {
    fn insert(&mut self, keys: Vec<String>, rule: u32) {
        self.all.push(rule);
        for key in keys {
            let known = self.by.entry(key).or_default();
            if known.last() != Some(&rule) {
                known.push(rule);
            }
        }
    }

    fn find(&self, key: &str, found: &mut Vec<u32>) {
        if let Some(rules) = self.by.get(key) {
            found.extend_from_slice(rules);
        }
    }
}

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (rule, number) in rules.iter().zip(0..) {
            let bucket = match &rule.scope {
                Scope::Everywhere => &mut index.everywhere,
                Scope::Space(id) => index.named[0].entry(id.clone()).or_default(),
                Scope::Agent(id) => index.named[1].entry(id.clone()).or_default(),
                Scope::Workspace(id) => index.named[2].entry(id.clone()).or_default(),
                Scope::Mode(id) => index.named[3].entry(id.clone()).or_default(),
            };
            match &rule.subject {
                Subject::Class(class) => bucket.classes[*class as usize].insert(&rule.constraints, number),
                Subject::Command(prefix) => bucket.commands.entry(prefix.clone()).or_default().push(number),
            }
        }
        index
    }

    fn buckets(&self, principal: &Principal) -> impl Iterator<Item = &Bucket> {
        let names = [&principal.space, &principal.agent, &principal.workspace, &principal.mode];
        let named = self.named.iter().zip(names);
        let named = named.filter_map(|(known, name)| known.get(name.as_ref()?));
        named.chain([&self.everywhere])
    }

    /// The rules about a class that may match, each once.
    pub(crate) fn about_class(&self, class: ActionClass, request: &Request, found: &mut Vec<u32>) {
        found.clear();
        for bucket in self.buckets(&request.principal) {
            bucket.classes[class as usize].find(request, found);
        }
        found.sort_unstable();
        found.dedup();
    }

    /// The rules about the start of a command that may match.
    pub(crate) fn about_command(&self, command: &str, principal: &Principal, found: &mut Vec<u32>) {
        found.clear();
        for bucket in self.buckets(principal).filter(|bucket| !bucket.commands.is_empty()) {
            for prefix in word_prefixes(command) {
                if let Some(rules) = bucket.commands.get(prefix) {
                    found.extend_from_slice(rules);
                }
            }
        }
    }
}

impl Facets {
    fn insert(&mut self, constraints: &Constraints, rule: u32) {
        if let Some(keys) = anchors(&constraints.refs, |pattern| pattern.anchor()) {
            self.refs.insert(keys, rule);
        } else if let Some(keys) = anchors(&constraints.hosts, |pattern| pattern.key()) {
            let mut names = Vec::new();
            for key in keys {
                match key {
                    HostKey::Name(name) => names.push(name),
                    HostKey::Range(network) => {
                        self.ranges.entry(network).or_default().push(rule);
                        if !self.lengths.contains(&network.prefix) {
                            self.lengths.push(network.prefix);
                        }
                    }
                }
            }
            self.hosts.insert(names, rule);
        } else if let Some(keys) = anchors(&constraints.paths, |pattern| pattern.anchor()) {
            self.paths.insert(keys, rule);
        } else {
            self.always.push(rule);
        }
    }

    fn find(&self, request: &Request, found: &mut Vec<u32>) {
        found.extend_from_slice(&self.always);
        let action = &request.action;
        if !self.refs.all.is_empty() {
            match action.refs.as_deref() {
                None | Some([]) => found.extend_from_slice(&self.refs.all),
                Some(refs) => {
                    for prefix in refs.iter().flat_map(|reference| segment_prefixes(reference.full())) {
                        self.refs.find(prefix, found);
                    }
                }
            }
        }
        if !self.paths.all.is_empty() {
            match action.paths.as_deref() {
                None | Some([]) => found.extend_from_slice(&self.paths.all),
                Some(paths) => {
                    for path in paths {
                        for prefix in segment_prefixes(path.clean()) {
                            self.paths.find(prefix, found);
                        }
                        if path.raw() != path.clean() {
                            for prefix in segment_prefixes(path.raw()) {
                                self.paths.find(prefix, found);
                            }
                        }
                    }
                }
            }
        }
        if !self.hosts.all.is_empty() {
            match action.hosts.as_deref() {
                None | Some([]) => found.extend_from_slice(&self.hosts.all),
                Some(hosts) => {
                    for host in hosts {
                        self.find_host(host.target(), found);
                        for address in request.resolved.get(host.raw()).into_iter().flatten() {
                            self.find_address(&bytes(*address), found);
                        }
                    }
                }
            }
        }
    }

    fn find_host(&self, target: &Target, found: &mut Vec<u32>) {
        match target {
            Target::Socket => {}
            Target::Address(address) => self.find_address(address, found),
            Target::Name(name) => {
                self.hosts.find(name, found);
                for (at, _) in name.match_indices('.') {
                    self.hosts.find(&name[at..], found);
                }
            }
        }
    }

    fn find_address(&self, address: &Address, found: &mut Vec<u32>) {
        let meant = unfold(address);
        for address in &meant.addresses[..meant.len] {
            for prefix in &self.lengths {
                let range = Network { address: *address, prefix: *prefix }.trunc();
                found.extend(self.ranges.get(&range).into_iter().flatten());
            }
        }
    }
}

/// A value for each pattern; none when a pattern has none, or when nothing but negatives stands there.
fn anchors<P: Pattern, K>(patterns: &[P], key: impl Fn(&P) -> Option<K>) -> Option<Vec<K>> {
    let positives = patterns.iter().filter(|pattern| !pattern.negative());
    let keys: Vec<K> = positives.map(key).collect::<Option<_>>()?;
    (!keys.is_empty()).then_some(keys)
}

/// `a`, `a/b` and `a/b/c` of `a/b/c`.
fn segment_prefixes(value: &str) -> impl Iterator<Item = &str> {
    let ends = value.match_indices('/').map(|(at, _)| at).chain([value.len()]);
    ends.map(|end| &value[..end])
}

/// Every start of a command that ends at a word.
fn word_prefixes(command: &str) -> impl Iterator<Item = &str> {
    let blanks = command.char_indices().filter(|(_, character)| character.is_ascii_whitespace());
    blanks.map(|(at, _)| at).chain([command.len()]).map(|end| &command[..end])
}
