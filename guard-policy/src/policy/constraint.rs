//! What a rule is limited to, and whether a request fits (`C-050` … `C-063`, `R-13`, `R-14`).

use std::borrow::Cow;
use std::fmt;

use guard_common::{Effect, unfold};

use crate::request::{Action, Facet, Request, Source};
use crate::session::Used;
use crate::value::{
    ActPath, Host, HostPattern, PathPattern, Pattern, Ref, RefPattern, Target, bytes, command_has_prefix,
};

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
    /// Ceiling of the count.
    pub max_count: Option<u64>,
    /// Ceiling of the cost, in hundredths.
    pub max_cents: Option<u64>,
    /// Whether the ceilings are about one request and not about a whole session (`R-15`).
    pub per_action: bool,
}

/// How a rule's constraints and a request meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The rule applies.
    Applies,
    /// The request is silent about this facet, and nothing else rules the rule out.
    Unknown(Facet),
    /// The facets fit, and the ceiling is not reached, or is passed: the rule does not apply, and its count goes on.
    Ceiling,
    /// The rule does not apply.
    No,
    /// The sum of what was used and what is asked cannot be told.
    Overflow,
}

/// A request as constraints see it: of an address that hides others, one.
pub(crate) struct View<'r> {
    request: &'r Request,
    reading: usize,
}

impl<'r> View<'r> {
    /// Hosts as they are written.
    pub(crate) fn plain(request: &'r Request) -> Self {
        Self { request, reading: 0 }
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
    pub(crate) fn reading(request: &'r Request, reading: usize) -> Self {
        Self { request, reading }
    }

    fn action(&self) -> &'r Action {
        &self.request.action
    }

    fn target(&self, host: &'r Host) -> Cow<'r, Target> {
        match host.target() {
            Target::Address(address) if self.reading > 0 => {
                let candidates = unfold(address);
                Cow::Owned(Target::Address(candidates.addresses[self.reading.min(candidates.len - 1)]))
            }
            other => Cow::Borrowed(other),
        }
    }

    /// What the caller says that a name resolves to, each address in each of its meanings.
    fn resolved(&self, host: &Host) -> impl Iterator<Item = Target> {
        let addresses = self.request.resolved.get(host.raw()).into_iter().flatten();
        addresses.flat_map(|address| {
            let candidates = unfold(&bytes(*address));
            candidates.addresses.into_iter().take(candidates.len).map(Target::Address)
        })
    }

    /// Whether an allowing rule may rest on this facet (`R-64`): what an adapter only reports, and could not
    /// have stopped, permits nothing.
    fn trusted(&self, facet: Facet) -> bool {
        let adapter = self.request.adapter.as_deref();
        self.request.sources.get(facet) != Source::Reported || adapter.is_none_or(crate::adapter::intercepts)
    }
}

/// What the named facets say together.
struct Met<'r, 'v> {
    view: &'v View<'r>,
    permits: bool,
    no: bool,
    unknown: Option<Facet>,
}

impl Met<'_, '_> {
    /// Takes in one named facet; `None` where the request is silent. Gives back whether another can matter.
    fn facet(&mut self, facet: Facet, met: Option<bool>) {
        match met {
            Some(_) if self.permits && !self.view.trusted(facet) => self.no = true,
            Some(met) => self.no |= !met,
            None => self.unknown = self.unknown.or(Some(facet)),
        }
    }
}

impl Constraints {
    /// Whether the rule names no limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
            && self.refs.is_empty()
            && self.hosts.is_empty()
            && self.commands.is_empty()
            && self.max_count.is_none()
            && self.max_cents.is_none()
    }

    /// Whether it has a ceiling that accumulates over a session.
    #[must_use]
    pub fn accumulates(&self) -> bool {
        !self.per_action && (self.max_count.is_some() || self.max_cents.is_some())
    }

    /// Restrictive rules apply when each named facet is touched, permissive ones when each lies inside; ceilings
    /// count what was used before.
    pub(crate) fn fit(&self, effect: Effect, view: &View<'_>, used: Used) -> Fit {
        let permits = effect == Effect::Allow;
        let mut met = Met { view, permits, no: false, unknown: None };
        self.facets(&mut met);
        if met.no {
            return Fit::No;
        }
        let mut unknown = met.unknown;
        let within = |used: u64, amount: u64, max: Option<u64>| match max {
            None => Some(true),
            Some(max) => used.checked_add(amount).map(|sum| (sum <= max) == permits),
        };
        match within(used.count, view.action().effective_count(), self.max_count) {
            None => return Fit::Overflow,
            Some(false) => return Fit::Ceiling,
            Some(true) => {}
        }
        match (view.action().cents, self.max_cents) {
            (_, None) => {}
            (None, Some(_)) => unknown = unknown.or(Some(Facet::Cents)),
            (Some(cents), max) => match within(used.cents, cents, max) {
                None => return Fit::Overflow,
                Some(false) => return Fit::Ceiling,
                Some(true) => {}
            },
        }
        unknown.map_or(Fit::Applies, Fit::Unknown)
    }

    fn facets(&self, met: &mut Met<'_, '_>) {
        let (permits, view, action) = (met.permits, met.view, met.view.action());
        if !self.paths.is_empty() {
            let test = |path: &ActPath| {
                let forms = [path.clean(), path.raw()];
                list(
                    &self.paths,
                    permits,
                    |pattern| pattern.covers(forms[0]),
                    |pattern| pattern.covers(forms[0]) || (forms[0] != forms[1] && pattern.covers(forms[1])),
                )
            };
            met.facet(Facet::Paths, action.paths.as_ref().map(|values| quantify(permits, values, test)));
        }
        if !self.refs.is_empty() && !met.no {
            // Every spelling of a ref has one whole name, so there is no second form to look at.
            let test = |reference: &Ref| {
                let covers = |pattern: &RefPattern| pattern.covers(reference);
                list(&self.refs, permits, covers, covers)
            };
            met.facet(Facet::Refs, action.refs.as_ref().map(|values| quantify(permits, values, test)));
        }
        if !self.hosts.is_empty() && !met.no {
            let test = |host: &Host| {
                let target = view.target(host);
                let covers = |pattern: &HostPattern| pattern.covers(&target);
                list(&self.hosts, permits, covers, |pattern| {
                    covers(pattern) || view.resolved(host).any(|target| pattern.covers(&target))
                })
            };
            met.facet(Facet::Hosts, action.hosts.as_ref().map(|values| quantify(permits, values, test)));
        }
        if !self.commands.is_empty() && !met.no {
            let test =
                |command: &String| self.commands.iter().any(|prefix| command_has_prefix(command, prefix));
            met.facet(
                Facet::Commands,
                action.commands.as_ref().map(|values| quantify(permits, values, test)),
            );
        }
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
fn list<P: Pattern>(
    patterns: &[P],
    permits: bool,
    canonical: impl Fn(&P) -> bool,
    any_form: impl Fn(&P) -> bool,
) -> bool {
    let hit = |pattern: &P, milder: bool| if milder { canonical(pattern) } else { any_form(pattern) };
    let mut positives = patterns.iter().filter(|pattern| !pattern.negative()).peekable();
    let included = positives.peek().is_none() || positives.any(|pattern| hit(pattern, permits));
    included && !patterns.iter().filter(|pattern| pattern.negative()).any(|pattern| hit(pattern, !permits))
}

impl fmt::Display for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn joined<P: Pattern>(patterns: &[P]) -> Option<String> {
            let written: Vec<&str> = patterns.iter().map(Pattern::written).collect();
            (!written.is_empty()).then(|| written.join(", "))
        }
        let parts = [
            ("paths", joined(&self.paths)),
            ("refs", joined(&self.refs)),
            ("hosts", joined(&self.hosts)),
            ("commands", (!self.commands.is_empty()).then(|| self.commands.join(", "))),
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
