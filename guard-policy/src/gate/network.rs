//! The first gate: ranges of addresses that nobody reaches, whatever the rules say.

use guard_common::address::{Address, class_of, unfold};

use super::Finding;
use crate::decide::Context;
use crate::decision::{Code, Outcome, Refusal};
use crate::policy::NetworkPolicy;
use crate::request::Request;
use crate::value::{Network, Target, bytes, display};

/// Judges every address among the hosts, and every address that the caller says a name resolves to.
pub(crate) fn judge(policy: &NetworkPolicy, request: &Request, context: &Context) -> Finding {
    let addresses = addresses(request);
    if addresses.is_empty() {
        return Finding::default();
    }
    let holes = policy.open(context.resolvers());
    let action = &request.action;
    for written in &addresses {
        let candidates = unfold(written);
        let refused = candidates.iter().filter_map(|address| {
            let place = Network { address: *address, prefix: 128 };
            let range = policy.refuses(&place, action.port, action.transport, &holes)?;
            Some((class_of(address), range))
        });
        // Of several meanings the worst is named.
        if let Some((_, range)) = refused.max_by_key(|(class, _)| *class) {
            let reason = format!("{} is in the refused range {range}", display(written));
            let denied = Refusal {
                rule: format!("network:{range}").into(),
                resource_class: "networkEgress",
                reason,
                code: Code::Network,
            };
            return Finding::refused(denied);
        }
    }
    Finding { outcome: Some(Outcome::Allow), ..Finding::default() }
}

fn addresses(request: &Request) -> Vec<Address> {
    let mut addresses = Vec::new();
    for host in request.action.hosts.iter().flatten() {
        if let Target::Address(address) = host.target() {
            addresses.push(*address);
        }
        addresses.extend(request.resolved.get(host.raw()).into_iter().flatten().map(|ip| bytes(*ip)));
    }
    addresses
}
