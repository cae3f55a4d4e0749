//! Which ranges of addresses nobody reaches, and the holes in them.

use std::net::IpAddr;

use guard_common::BUILTIN_RANGES;
use guard_common::network::Verdict;

use crate::request::Transport;
use crate::value::Network;

/// Ranges and holes of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Ranges refused by the policy, beside the built-in ones.
    pub denied: Vec<Network>,
    /// Ranges refused by the managed file; no hole opens them.
    pub managed_denied: Vec<Network>,
    /// What the policy opens.
    pub holes: Vec<Hole>,
    /// Whether the managed file lets the policy have holes.
    pub allow_holes: bool,
    /// Whether port 53 of the host's resolvers is open.
    pub resolvers: bool,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self {
            denied: Vec::new(),
            managed_denied: Vec::new(),
            holes: Vec::new(),
            allow_holes: true,
            resolvers: true,
        }
    }
}

/// An exact hole in the refused ranges (`R-72`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Where.
    pub network: Network,
    /// At which ports; none named: all.
    pub ports: Vec<u16>,
    /// With which protocol; none named: all.
    pub transport: Option<Transport>,
}

impl Hole {
    /// Whether it is open for everything at its addresses.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.ports.is_empty() && self.transport.is_none()
    }

    fn admits(&self, port: Option<u16>, transport: Option<Transport>) -> bool {
        let port_fits = self.ports.is_empty() || port.is_some_and(|port| self.ports.contains(&port));
        port_fits && (self.transport.is_none() || self.transport == transport)
    }
}

/// A range that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    /// The range's name, or the range itself.
    pub(crate) name: String,
    /// The longest prefix of a hole that it keeps closed.
    beats: Option<u8>,
}

impl Closed {
    /// Whether a hole with this prefix opens it.
    pub(crate) fn opened_by(&self, hole: &Hole) -> bool {
        self.beats.is_some_and(|beats| hole.network.prefix > beats)
    }
}

impl NetworkPolicy {
    /// The holes in force, with those for the resolvers.
    pub(crate) fn open(&self, resolvers: &[IpAddr]) -> Vec<Hole> {
        let mut holes = if self.allow_holes { self.holes.clone() } else { Vec::new() };
        if self.resolvers {
            let port_53 = |address: &IpAddr| {
                [Transport::Udp, Transport::Tcp].map(|transport| Hole {
                    network: Network::from(*address),
                    ports: vec![53],
                    transport: Some(transport),
                })
            };
            holes.extend(resolvers.iter().flat_map(port_53));
        }
        holes
    }

    /// What closes every address of `place`, unless a hole opens it.
    ///
    /// The longest range counts, so a wide hole does not open a narrower range inside it: a hole for 10/8 opens
    /// private addresses, one for 0/0 opens nothing, and no hole but its own address opens a metadata service.
    /// A built-in range yields to a hole of the same size; one of the policy does not, and one of the managed
    /// file yields to none.
    pub(crate) fn closed(&self, place: &Network) -> Option<Closed> {
        let longest = |ranges: &[Network]| {
            ranges.iter().filter(|range| range.covers(place)).max_by_key(|range| range.prefix).copied()
        };
        if let Some(range) = longest(&self.managed_denied) {
            return Some(Closed { name: range.to_string(), beats: None });
        }
        let built_in = BUILTIN_RANGES
            .iter()
            .filter(|range| Network { address: range.address, prefix: range.prefix }.covers(place))
            .max_by_key(|range| range.prefix)
            .filter(|range| range.default_verdict() == Verdict::Deny);
        let built_in =
            built_in.map(|range| (range.prefix, range.class.as_str().to_owned(), range.prefix - 1));
        let written = longest(&self.denied).map(|range| (range.prefix, range.to_string(), range.prefix));
        let (_, name, beats) =
            built_in.into_iter().chain(written).max_by_key(|(prefix, _, beats)| (*prefix, *beats))?;
        Some(Closed { name, beats: Some(beats) })
    }

    /// Names the range that refuses `place` at this port, if one does.
    pub(crate) fn refuses(
        &self,
        place: &Network,
        port: Option<u16>,
        transport: Option<Transport>,
        holes: &[Hole],
    ) -> Option<String> {
        let closed = self.closed(place)?;
        let opened = holes
            .iter()
            .any(|hole| hole.network.covers(place) && hole.admits(port, transport) && closed.opened_by(hole));
        (!opened).then_some(closed.name)
    }
}
