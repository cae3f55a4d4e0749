//! Policies and requests as plain data, and the JSON that says the same.

use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    Allow,
    Prompt,
    Deny,
}

impl Effect {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Prompt => "prompt",
            Self::Deny => "deny",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Class(&'static str),
    Command(&'static str),
}

/// The kinds of scope, most specific first, and the name in it; `everywhere` has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope(pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const KINDS: [&str; 5] = ["space", "agent", "workspace", "mode", "everywhere"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Advisory,
    Soft,
    Strict,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Constraints {
    pub(crate) paths: Vec<&'static str>,
    pub(crate) refs: Vec<&'static str>,
    pub(crate) hosts: Vec<&'static str>,
    pub(crate) commands: Vec<&'static str>,
    pub(crate) max_count: Option<u64>,
    pub(crate) max_cents: Option<u64>,
    /// Whether the ceilings are about one act and not about a session.
    pub(crate) per_action: bool,
}

impl Constraints {
    pub(crate) fn is_empty(&self) -> bool {
        self.lists().iter().all(|(_, list)| list.is_empty())
            && self.max_count.is_none()
            && self.max_cents.is_none()
    }

    fn lists(&self) -> [(&'static str, &Vec<&'static str>); 4] {
        [("paths", &self.paths), ("refs", &self.refs), ("hosts", &self.hosts), ("commands", &self.commands)]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) scope: Scope,
    pub(crate) subject: Subject,
    pub(crate) effect: Effect,
    pub(crate) level: Level,
    pub(crate) constraints: Constraints,
    /// `Some(true)`: gone by now; `Some(false)`: gone later.
    pub(crate) expired: Option<bool>,
}

impl Rule {
    pub(crate) fn json(&self) -> Value {
        let mut rule = json!({"id": self.id, "effect": self.effect.word()});
        match self.subject {
            Subject::Class(class) => rule["class"] = class.into(),
            Subject::Command(prefix) => rule["command_prefix"] = prefix.into(),
        }
        if self.scope.0 != "everywhere" {
            rule["scope"] = format!("{}:{}", self.scope.0, self.scope.1).into();
        }
        match self.level {
            Level::Advisory => rule["level"] = "advisory".into(),
            Level::Soft => rule["level"] = "soft".into(),
            Level::Strict => {}
        }
        if let Some(expired) = self.expired {
            // A rule is gone at the very moment of its expiry.
            rule["expires_at"] = if expired { "2026-11-30T12:00:00Z" } else { "2026-11-30T12:00:01Z" }.into();
        }
        if !self.constraints.is_empty() {
            let mut constraints = Map::new();
            for (name, list) in self.constraints.lists() {
                if !list.is_empty() {
                    constraints.insert(name.into(), json!(list));
                }
            }
            let ceilings =
                [("max_count", self.constraints.max_count), ("max_cents", self.constraints.max_cents)];
            for (name, ceiling) in ceilings {
                if let Some(ceiling) = ceiling {
                    constraints.insert(name.into(), ceiling.into());
                    if self.constraints.per_action {
                        constraints.insert("per".into(), "action".into());
                    }
                }
            }
            rule["constraints"] = constraints.into();
        }
        rule
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    pub(crate) deny: Vec<&'static str>,
    pub(crate) allow: Vec<Hole>,
    pub(crate) resolvers_closed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Hole {
    pub(crate) cidr: &'static str,
    pub(crate) ports: Vec<u16>,
    pub(crate) proto: Option<&'static str>,
}

impl Hole {
    fn json(&self) -> Value {
        if self.ports.is_empty() && self.proto.is_none() {
            return self.cidr.into();
        }
        let mut hole = json!({"cidr": self.cidr});
        if !self.ports.is_empty() {
            hole["ports"] = json!(self.ports);
        }
        if let Some(proto) = self.proto {
            hole["proto"] = proto.into();
        }
        hole
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) rules: Vec<Rule>,
    /// Prefixes that the mode `review` refuses.
    pub(crate) net: Vec<&'static str>,
    /// Value of the dial of the space `alpha`.
    pub(crate) autonomy: Option<&'static str>,
    pub(crate) network: Network,
    pub(crate) managed: Vec<Rule>,
    pub(crate) managed_deny: Vec<&'static str>,
    pub(crate) holes_forbidden: bool,
}

impl Policy {
    pub(crate) fn json(&self) -> String {
        let mut policy = json!({"version": 1, "rules": rules(&self.rules)});
        if !self.net.is_empty() {
            policy["modes"] = json!({"review": {"deny_commands": self.net}});
        }
        if let Some(value) = self.autonomy {
            policy["autonomy"] = json!({"alpha": value});
        }
        let mut network = Map::new();
        network.insert("deny".into(), json!(self.network.deny));
        network.insert("allow".into(), self.network.allow.iter().map(Hole::json).collect());
        if self.network.resolvers_closed {
            network.insert("resolvers".into(), "deny".into());
        }
        policy["network"] = network.into();
        policy.to_string()
    }

    pub(crate) fn managed_json(&self) -> String {
        let mut network = json!({"deny": self.managed_deny});
        if self.holes_forbidden {
            network["allow_holes"] = false.into();
        }
        json!({"version": 1, "rules": rules(&self.managed), "network": network}).to_string()
    }

    pub(crate) fn load(&self) -> guard_policy::Policy {
        crate::load_both(&self.json(), &self.managed_json())
    }
}

fn rules(rules: &[Rule]) -> Vec<Value> {
    rules.iter().map(Rule::json).collect()
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) space: Option<&'static str>,
    pub(crate) agent: Option<&'static str>,
    pub(crate) workspace: Option<&'static str>,
    pub(crate) mode: Option<&'static str>,
    /// In the order of the taxonomy.
    pub(crate) classes: Vec<&'static str>,
    pub(crate) paths: Option<Vec<&'static str>>,
    pub(crate) refs: Option<Vec<&'static str>>,
    pub(crate) hosts: Option<Vec<&'static str>>,
    pub(crate) commands: Option<Vec<&'static str>>,
    pub(crate) count: Option<u64>,
    pub(crate) cents: Option<u64>,
    pub(crate) approver: bool,
    /// Who lifts a soft denial with it, and why.
    pub(crate) lifted: Option<(&'static str, &'static str)>,
}

impl Request {
    pub(crate) fn principal(&self, kind: &str) -> Option<&'static str> {
        match kind {
            "space" => self.space,
            "agent" => self.agent,
            "workspace" => self.workspace,
            "mode" => self.mode,
            _ => None,
        }
    }

    pub(crate) fn json(&self) -> String {
        let mut principal = Map::new();
        for kind in &KINDS[..4] {
            if let Some(name) = self.principal(kind) {
                principal.insert((*kind).into(), name.into());
            }
        }
        let mut action = json!({"classes": self.classes});
        let lists = [
            ("paths", &self.paths),
            ("refs", &self.refs),
            ("hosts", &self.hosts),
            ("commands", &self.commands),
        ];
        for (name, list) in lists {
            if let Some(list) = list {
                action[name] = json!(list);
            }
        }
        for (name, amount) in [("count", self.count), ("cents", self.cents)] {
            if let Some(amount) = amount {
                action[name] = amount.into();
            }
        }
        let mut request = json!({"principal": principal, "action": action, "approver": self.approver});
        if let Some((by, justification)) = self.lifted {
            request["override"] = json!({"by": by, "justification": justification});
        }
        request.to_string()
    }
}
