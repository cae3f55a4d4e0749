//! The guards of delegation (`C-120` … `C-125`): depth, cycles, autonomy and budget.
//!
//! What a request says about the chain of delegators is taken as said, and never below what this session saw
//! itself: whoever got a task at depth two does not hand it on at depth one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::decision::{Code, Refusal};
use crate::policy::{Autonomy, Policy};
use crate::request::{Delegate, Principal, Request};

/// Amounts by resource class and unit.
pub type Budget = BTreeMap<String, BTreeMap<String, u64>>;

/// What the agents of a session got when a task was handed to them.
#[derive(Debug, Default)]
pub(crate) struct Envelopes(HashMap<String, Envelope>);

#[derive(Debug)]
struct Envelope {
    /// Everybody above, the root first.
    chain: Vec<String>,
    autonomy: Autonomy,
    /// What is left; none: whoever delegated had no budget to share.
    budget: Option<Budget>,
}

impl Envelopes {
    /// What the dial of the space leaves to this agent (`C-123`).
    pub(crate) fn autonomy(&self, policy: &Policy, principal: &Principal) -> Autonomy {
        let space = policy.autonomy(principal);
        match principal.agent.as_deref().and_then(|agent| self.0.get(agent)) {
            Some(envelope) => space.min(envelope.autonomy),
            None => space,
        }
    }

    fn budget(&self, agent: Option<&str>) -> Option<&Budget> {
        self.0.get(agent?)?.budget.as_ref()
    }

    /// Hands over what a delegation that was let through carries, and takes it from the delegator (`C-124`).
    pub(crate) fn grant(&mut self, policy: &Policy, request: &Request) {
        let Some(delegate) = &request.delegate else { return };
        let delegator = delegator(request, delegate);
        let above = self.chain(request, delegate);
        let ceiling = self.autonomy(policy, &request.principal);
        let own = delegator.and_then(|agent| self.0.get_mut(agent)).and_then(|own| own.budget.as_mut());
        let limited = own.is_some();
        if let Some(own) = own {
            for (class, unit, amount) in amounts(&delegate.budget) {
                if let Some(left) = own.get_mut(class).and_then(|units| units.get_mut(unit)) {
                    *left = left.saturating_sub(amount);
                }
            }
        }
        let autonomy = delegate.autonomy.unwrap_or(ceiling).min(ceiling);
        let to = name(&delegate.to).to_owned();
        let envelope =
            self.0.entry(to).or_insert_with(|| Envelope { chain: Vec::new(), autonomy, budget: None });
        envelope.autonomy = envelope.autonomy.min(autonomy);
        if above.len() > envelope.chain.len() {
            envelope.chain = above;
        }
        if limited || !delegate.budget.is_empty() {
            let budget = envelope.budget.get_or_insert_default();
            for (class, unit, amount) in amounts(&delegate.budget) {
                let left = budget.entry(class.to_owned()).or_default().entry(unit.to_owned()).or_default();
                *left = left.saturating_add(amount);
            }
        }
    }

    /// Everybody above the delegate, as said or as seen, whichever is longer.
    fn chain(&self, request: &Request, delegate: &Delegate) -> Vec<String> {
        let mut said: Vec<String> = delegate.chain.iter().map(|agent| name(agent).to_owned()).collect();
        let Some(delegator) = delegator(request, delegate) else { return said };
        if said.is_empty() {
            said.push(delegator.to_owned());
        }
        let mut seen = self.0.get(delegator).map(|envelope| envelope.chain.clone()).unwrap_or_default();
        seen.push(delegator.to_owned());
        if seen.len() > said.len() { seen } else { said }
    }
}

fn amounts(budget: &Budget) -> impl Iterator<Item = (&str, &str, u64)> {
    budget.iter().flat_map(|(class, units)| {
        units.iter().map(|(unit, amount)| (class.as_str(), unit.as_str(), *amount))
    })
}

/// `agent:a` and `a` are the same agent.
fn name(agent: &str) -> &str {
    agent.strip_prefix("agent:").unwrap_or(agent)
}

/// Who hands the task on: the principal, or the last of the chain where the principal is nobody.
fn delegator<'r>(request: &'r Request, delegate: &'r Delegate) -> Option<&'r str> {
    request.principal.agent.as_deref().or_else(|| delegate.chain.last().map(|agent| name(agent)))
}

/// The first guard that refuses.
pub(crate) fn judge(policy: &Policy, request: &Request, envelopes: &Envelopes) -> Option<Refusal> {
    let delegate = request.delegate.as_ref()?;
    let to = name(&delegate.to);
    let chain = envelopes.chain(request, delegate);
    let refuse = |guard: &'static str, reason: String| {
        Some(Refusal { rule: guard.into(), resource_class: "delegation", reason, code: Code::Delegation })
    };
    let most = policy.delegation_depth();
    if chain.len() as u64 > most {
        let reason = format!(
            "{to} would be at depth {}; tasks are handed on down to depth {most} here: do it yourself or stop",
            chain.len()
        );
        return refuse("delegation:depth", reason);
    }
    let mut above: BTreeSet<&str> = chain.iter().map(String::as_str).collect();
    above.extend(request.principal.agent.as_deref());
    let repeated = delegate.chain.len() != delegate.chain.iter().collect::<BTreeSet<_>>().len();
    if above.contains(to) || repeated {
        let path = chain.iter().map(String::as_str).chain([to]).collect::<Vec<_>>().join(" > ");
        return refuse("delegation:cycle", format!("the task would come back to an agent above: {path}"));
    }
    let ceiling = envelopes.autonomy(policy, &request.principal);
    if let Some(wanted) = delegate.autonomy.filter(|wanted| *wanted > ceiling) {
        let reason = format!(
            "{to} would act with {}, and whoever delegates has {}",
            wanted.as_str(),
            ceiling.as_str()
        );
        return refuse("delegation:autonomy", reason);
    }
    let own = envelopes.budget(delegator(request, delegate))?;
    let over = amounts(&delegate.budget).find_map(|(class, unit, amount)| {
        let left = own.get(class).and_then(|units| units.get(unit)).copied().unwrap_or(0);
        (amount > left)
            .then(|| format!("{to} would get {amount} {unit} of {class}, and {left} are left to share"))
    });
    refuse("delegation:budget", over?)
}
