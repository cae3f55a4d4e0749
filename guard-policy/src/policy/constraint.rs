//! What a rule is limited to, and whether a request fits (`C-050` … `C-063`, `R-13`, `R-14`).

use std::fmt;

use guard_common::{Effect, unfold};

use crate::request::{Action, Facet, Request, Source};
use crate::value::{Host, HostPattern, PathPattern, RefPattern, Target, bytes, command_has_prefix};

/// The limits of a rule; a list that is empty is not named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// Files.
    pub paths: Vec<PathPattern>,
    /// Git refs.
    pub refs: Vec<RefPattern>,
    /// Hosts.
    pub hosts: Vec<HostPattern>,
    /// Prefixes of commands.
    pub commands: Vec<String>,
    /// Ceiling of the count of one request.
    pub max_count: Option<u64>,
    /// Ceiling of the cost of one request.
    pub max_cents: Option<u64>,
}

/// How a rule's constraints and a request meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The rule applies.
    Applies,
    /// The request is silent about this facet, and nothing else rules the rule out.
    Unknown(Facet),
    /// The rule does not apply.
    No,
}

/// A request as constraints see it: each host is one target.
pub(crate) struct View<'r> {
    action: &'r Action,
    request: &'r Request,
    /// Each host, and what the caller says that it resolves to.
    hosts: Option<Vec<(Target, Vec<Target>)>>,
}

impl<'r> View<'r> {
    /// Hosts as they are written.
    pub(crate) fn plain(request: &'r Request) -> Self {
        Self::reading(request, 0)
    }

    /// How many ways of reading its hosts a request has: an address that hides others is each of them (`R-24`).
    pub(crate) fn readings(request: &Request) -> usize {
        let hidden = |host: &Host| match host.target() {
            Target::Address(address) => unfold(address).len,
            _ => 1,
        };
        request.action.hosts.iter().flatten().map(hidden).max().unwrap_or(1)
    }

    /// One of these ways; the first is plain.
    pub(crate) fn reading(request: &'r Request, index: usize) -> Self {
        let target = |host: &Host| {
            let target = match host.target() {
                Target::Address(address) => {
                    let candidates = unfold(address);
                    Target::Address(candidates.addresses[index.min(candidates.len - 1)])
                }
                other => other.clone(),
            };
            let resolved = request.resolved.get(host.raw()).into_iter().flatten();
            let meant = resolved.flat_map(|address| {
                let candidates = unfold(&bytes(*address));
                candidates.addresses.into_iter().take(candidates.len).map(Target::Address)
            });
            (target, meant.collect())
        };
        let hosts = request.action.hosts.as_ref().map(|hosts| hosts.iter().map(target).collect());
        Self { action: &request.action, request, hosts }
    }

    /// Whether an allowing rule may rest on this facet (`R-64`): what an adapter only reports, and could not
    /// have stopped, permits nothing.
    fn trusted(&self, facet: Facet) -> bool {
        const INTERCEPTING: [&str; 3] = ["embedded", "grpc", "mcp"];
        let adapter = self.request.adapter.as_deref();
        self.request.sources.get(facet) != Source::Reported
            || adapter.is_none_or(|adapter| INTERCEPTING.contains(&adapter))
    }
}

impl Constraints {
    /// Whether the rule names no limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Restrictive rules apply when each named facet is touched, permissive ones when each lies inside.
    pub(crate) fn fit(&self, effect: Effect, view: &View<'_>) -> Fit {
        let permits = effect == Effect::Allow;
        let mut unknown = None;
        for (facet, met) in self.facets(permits, view) {
            match met {
                Some(_) if permits && !view.trusted(facet) => return Fit::No,
                Some(false) => return Fit::No,
                Some(true) => {}
                None => unknown = unknown.or(Some(facet)),
            }
        }
        let within = |amount: u64, max: Option<u64>| max.is_none_or(|max| (amount <= max) == permits);
        if !within(view.action.effective_count(), self.max_count) {
            return Fit::No;
        }
        match view.action.cents {
            Some(cents) if !within(cents, self.max_cents) => return Fit::No,
            None if self.max_cents.is_some() => unknown = unknown.or(Some(Facet::Cents)),
            _ => {}
        }
        unknown.map_or(Fit::Applies, Fit::Unknown)
    }

    /// For each named facet whether it is met; `None` where the request is silent.
    fn facets(&self, permits: bool, view: &View<'_>) -> Vec<(Facet, Option<bool>)> {
        let action = view.action;
        let mut met = Vec::new();
        if !self.paths.is_empty() {
            let test = |path: &crate::value::ActPath| {
                let forms = [path.clean(), path.raw()];
                list(&self.paths, permits, PathPattern::negative, |pattern, index| {
                    forms.get(index).map(|form| pattern.covers(form))
                })
            };
            met.push((Facet::Paths, action.paths.as_ref().map(|values| quantify(permits, values, test))));
        }
        if !self.refs.is_empty() {
            // Every spelling of a ref has one whole name, so there is no second form to look at.
            let test = |reference: &crate::value::Ref| {
                list(&self.refs, permits, RefPattern::negative, |pattern, index| {
                    (index == 0).then(|| pattern.covers(reference))
                })
            };
            met.push((Facet::Refs, action.refs.as_ref().map(|values| quantify(permits, values, test))));
        }
        if !self.hosts.is_empty() {
            let test = |(host, resolved): &(Target, Vec<Target>)| {
                list(&self.hosts, permits, HostPattern::negative, |pattern, index| match index {
                    0 => Some(pattern.covers(host)),
                    _ => resolved.get(index - 1).map(|target| pattern.covers(target)),
                })
            };
            met.push((Facet::Hosts, view.hosts.as_ref().map(|values| quantify(permits, values, test))));
        }
        if !self.commands.is_empty() {
            let test =
                |command: &String| self.commands.iter().any(|prefix| command_has_prefix(command, prefix));
            met.push((
                Facet::Commands,
                action.commands.as_ref().map(|values| quantify(permits, values, test)),
            ));
        }
        met
    }
}

/// `C-060`, `C-061`: a permissive rule wants every value, a restrictive one any.
fn quantify<V>(permits: bool, values: &[V], test: impl Fn(&V) -> bool) -> bool {
    if permits { values.iter().all(test) } else { values.iter().any(test) }
}

/// Whether a list of patterns matches a value that has several forms, the canonical one first.
///
/// The patterns that make a rule more severe look at every form, those that make it milder at the canonical one
/// (`R-62`). A list of negatives alone starts from everything (`R-13`).
fn list<P>(
    patterns: &[P],
    permits: bool,
    negative: fn(&P) -> bool,
    covers: impl Fn(&P, usize) -> Option<bool>,
) -> bool {
    let canonical = |pattern: &P| covers(pattern, 0) == Some(true);
    let any_form = |pattern: &P| (0..).map_while(|form| covers(pattern, form)).any(|covered| covered);
    let hit = |pattern: &P, milder: bool| if milder { canonical(pattern) } else { any_form(pattern) };
    let mut positives = patterns.iter().filter(|pattern| !negative(pattern)).peekable();
    let included = positives.peek().is_none() || positives.any(|pattern| hit(pattern, permits));
    let excluded = patterns.iter().filter(|pattern| negative(pattern)).any(|pattern| hit(pattern, !permits));
    included && !excluded
}

impl fmt::Display for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |written: Vec<&str>| (!written.is_empty()).then(|| written.join(", "));
        let parts = [
            ("paths", joined(self.paths.iter().map(PathPattern::written).collect())),
            ("refs", joined(self.refs.iter().map(RefPattern::written).collect())),
            ("hosts", joined(self.hosts.iter().map(HostPattern::written).collect())),
            ("commands", joined(self.commands.iter().map(String::as_str).collect())),
            ("max_count", self.max_count.map(|max| max.to_string())),
            ("max_cents", self.max_cents.map(|max| max.to_string())),
        ];
        let mut separator = "";
        for (name, value) in parts {
            if let Some(value) = value {
                write!(f, "{separator}{name}: {value}")?;
                separator = "; ";
            }
        }
        Ok(())
    }
}
