//! Every rule as one English sentence (`C-056`): what it is about, where, what it says, how firmly and how long.
//!
//! The grammar of rules is closed, so the sentence says everything that the rule says: two rules that differ in
//! anything but their names differ in their sentences.

use guard_common::{ActionClass, Effect};

use crate::policy::{Autonomy, Constraints, Hole, Level, Policy, Provenance, Rule, Scope, Subject};
use crate::request::Transport;
use crate::value::Pattern;

/// A sentence, and the rule that it reads out; parts of a policy that are no rules have names like in decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The rule, or `net:MODE`, `autonomy:SPACE`, `network`, `delegation`, `limit:NAME`.
    pub rule: String,
    /// The sentence.
    pub text: String,
}

/// What an act of a class does.
#[must_use]
pub const fn activity(class: ActionClass) -> &'static str {
    match class {
        ActionClass::FileDelete => "deleting files",
        ActionClass::GitPush => "pushing to a git remote",
        ActionClass::PrCreate => "opening a pull request",
        ActionClass::PrPublish => "publishing a review or merging a pull request",
        ActionClass::VendorSyncWrite => "writing to an external tracker",
        ActionClass::FileWriteOutsideWorktree => "writing files outside the worktree",
        ActionClass::GitCommit => "making a git commit",
        ActionClass::NetworkEgress => "reaching the network",
        ActionClass::SecretAccess => "reading a secret",
        ActionClass::PackageInstall => "installing a package",
        ActionClass::ProcessSpawn => "starting a process",
        ActionClass::WorkspaceMutation => "changing the structure of a workspace",
        ActionClass::EnclosureControl => "driving an isolated environment",
    }
}

/// Reads out one rule of the policy.
#[must_use]
pub fn rule(rule: &Rule) -> String {
    said(rule, false)
}

/// Reads out a whole policy, the managed part last.
#[must_use]
pub fn policy(policy: &Policy) -> Vec<Sentence> {
    let parts = policy.parts();
    let mut sentences: Vec<Sentence> = Vec::new();
    let mut say = |rule: String, text: String| sentences.push(Sentence { rule, text });
    for rule in policy.rules() {
        say(rule.id.to_string(), said(rule, false));
    }
    for (mode, prefixes) in &parts.nets {
        let prefixes: Vec<String> = prefixes.iter().map(|prefix| format!("`{prefix}`")).collect();
        let text = format!(
            "In mode {mode}, whatever the rules say, a command that starts with {} is denied.",
            any(&prefixes)
        );
        say(format!("net:{mode}"), text);
    }
    for (space, dial) in &parts.autonomy {
        let text = match dial {
            Autonomy::ProposeOnly => {
                format!("In space {space}, agents only propose: every act that has a class is denied.")
            }
            Autonomy::ActWithApproval => {
                format!("In space {space}, agents act, and wait for a person where a rule or a default asks.")
            }
            Autonomy::ActFreely => format!(
                "In space {space}, agents act freely: whatever would be asked is allowed and nobody is asked; only denials and the managed file stop them."
            ),
        };
        say(format!("autonomy:{space}"), text);
    }
    for range in &parts.network.denied {
        say("network".to_owned(), format!("Nobody reaches {range}."));
    }
    for hole in &parts.network.holes {
        say(
            "network".to_owned(),
            format!("Rules decide about {}, also where it lies in a refused range.", open(hole)),
        );
    }
    if !parts.network.resolvers {
        say("network".to_owned(), "Port 53 of the host's resolvers is no exception.".to_owned());
    }
    if let Some(depth) = parts.max_depth {
        say("delegation".to_owned(), format!("Tasks are handed on down to depth {depth}."));
    }
    for (name, limit, usual) in policy.limits().named() {
        if limit != usual {
            say(format!("limit:{name}"), format!("A request with more than {limit} {name} is denied."));
        }
    }
    for rule in policy.managed_rules() {
        say(rule.id.to_string(), said(rule, true));
    }
    for range in &parts.network.managed_denied {
        say(
            "network".to_owned(),
            format!("By the managed file, nobody reaches {range}, and nothing opens it."),
        );
    }
    if !parts.network.allow_holes {
        say("network".to_owned(), "By the managed file, refused ranges have no holes.".to_owned());
    }
    sentences
}

fn said(rule: &Rule, managed: bool) -> String {
    let permits = rule.effect == Effect::Allow;
    let place = match &rule.scope {
        Scope::Space(id) => format!("In space {id}, "),
        Scope::Agent(id) => format!("For agent {id}, "),
        Scope::Workspace(id) => format!("In workspace {id}, "),
        Scope::Mode(id) => format!("In mode {id}, "),
        Scope::Everywhere => "Everywhere, ".to_owned(),
    };
    let place = if managed { format!("By the managed file: {}", lower(&place)) } else { place };
    let subject = match &rule.subject {
        Subject::Class(class) => activity(*class).to_owned(),
        Subject::Command(prefix) => format!("a command that starts with `{prefix}`"),
    };
    let limits = limits(&rule.constraints, permits);
    let verdict = match (rule.effect, rule.level) {
        (effect, Level::Advisory) => {
            let word = match effect {
                Effect::Allow => "allowed",
                Effect::Prompt => "asked about",
                Effect::Deny => "denied",
            };
            format!("would be {word}; for now that is only recorded")
        }
        (Effect::Allow, _) => "is allowed".to_owned(),
        (Effect::Prompt, _) => "waits for a person's yes".to_owned(),
        (Effect::Deny, Level::Soft) if managed => "is denied".to_owned(),
        (Effect::Deny, Level::Soft) => {
            "is denied, unless somebody who may overrides it with a justification".to_owned()
        }
        (Effect::Deny, _) => "is denied".to_owned(),
    };
    // A level that changes nothing is said all the same: the sentence is the whole rule.
    let soft =
        if rule.level == Level::Soft && (rule.effect != Effect::Deny || managed) { " (soft)" } else { "" };
    let until = rule.expires_at.map(|expiry| format!(", until {expiry}")).unwrap_or_default();
    let origin = match rule.provenance {
        Provenance::Authored => "",
        Provenance::Remembered => " (remembered from an answer)",
        Provenance::Template => " (from a template)",
    };
    let reason = rule.reason.as_ref().map(|reason| format!(" Reason: {reason}.")).unwrap_or_default();
    format!("{place}{subject}{limits} {verdict}{soft}{until}{origin}.{reason}")
}

fn lower(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}

/// ` when …`, all of which have to hold.
fn limits(constraints: &Constraints, permits: bool) -> String {
    let mut conditions = Vec::new();
    let mut list = |what: &str, patterns: Option<String>| {
        conditions.extend(patterns.map(|patterns| match permits {
            true => format!("every {what} is {patterns}"),
            false => format!("a {what} is {patterns}"),
        }));
    };
    list("path", patterns(&constraints.paths));
    list("ref", patterns(&constraints.refs));
    list("host", patterns(&constraints.hosts));
    let commands: Vec<String> = constraints.commands.iter().map(|prefix| format!("`{prefix}`")).collect();
    list("command", (!commands.is_empty()).then(|| format!("one that starts with {}", any(&commands))));
    let span = if constraints.per_action { "this act" } else { "the session so far, this act included," };
    let mut ceiling = |max: Option<u64>, unit: &str| {
        conditions.extend(max.map(|max| match permits {
            true => format!("{span} makes at most {max} {unit}"),
            false => format!("{span} makes more than {max} {unit}"),
        }));
    };
    ceiling(constraints.max_count, "things");
    ceiling(constraints.max_cents, "cents");
    // `per` without a ceiling says nothing; the sentence does neither.
    if conditions.is_empty() { String::new() } else { format!(", when {},", conditions.join(" and ")) }
}

/// `one of A or B, and none of C`.
fn patterns<P: Pattern>(patterns: &[P]) -> Option<String> {
    if patterns.is_empty() {
        return None;
    }
    let quote = |pattern: &P| format!("`{}`", pattern.written().trim_start_matches('!'));
    let inside: Vec<String> = patterns.iter().filter(|pattern| !pattern.negative()).map(quote).collect();
    let outside: Vec<String> = patterns.iter().filter(|pattern| pattern.negative()).map(quote).collect();
    let inside = if inside.is_empty() { "anything".to_owned() } else { any(&inside) };
    Some(if outside.is_empty() { inside } else { format!("{inside} but not {}", any(&outside)) })
}

fn any(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn open(hole: &Hole) -> String {
    let ports: Vec<String> = hole.ports.iter().map(u16::to_string).collect();
    let ports = match ports.as_slice() {
        [] => String::new(),
        [one] => format!(" at port {one}"),
        many => format!(" at ports {}", any(many)),
    };
    let transport = match hole.transport {
        None => "",
        Some(Transport::Tcp) => " over TCP",
        Some(Transport::Udp) => " over UDP",
    };
    format!("{}{ports}{transport}", hole.network)
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    /// `C-056`: what rules read like.
    #[test]
    fn rules_read_like_this() {
        let table = [
            (
                r#""scope": "workspace:acme", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}, "reason": "protected branch""#,
                "In workspace acme, pushing to a git remote, when a ref is `main`, is denied. Reason: protected branch.",
            ),
            (
                r#""scope": "space:alpha", "class": "fileDelete", "effect": "allow", "constraints": {"paths": ["target/**"], "max_count": 50}"#,
                "In space alpha, deleting files, when every path is `target/**` and the session so far, this act included, makes at most 50 things, is allowed.",
            ),
            (
                r#""scope": "agent:research", "class": "networkEgress", "effect": "deny", "level": "advisory", "constraints": {"hosts": ["**", "!*.internal"]}"#,
                "For agent research, reaching the network, when a host is `**` but not `*.internal`, would be denied; for now that is only recorded.",
            ),
            (
                r#""command_prefix": "npm publish", "effect": "prompt", "expires_at": "2026-12-24T18:00:00Z""#,
                "Everywhere, a command that starts with `npm publish` waits for a person's yes, until 2026-12-24T18:00:00Z.",
            ),
            (
                r#""scope": "mode:ci", "class": "packageInstall", "effect": "deny", "level": "soft", "constraints": {"max_cents": 5, "per": "action"}"#,
                "In mode ci, installing a package, when this act makes more than 5 cents, is denied, unless somebody who may overrides it with a justification.",
            ),
        ];
        for (rule, sentence) in table {
            let policy = format!(r#"{{"rules": [{{"id": "r", {rule}}}]}}"#);
            let policy = Policy::load(Some(("p", policy.as_bytes())), None).expect("valid");
            assert_eq!(super::rule(&policy.rules()[0]), sentence);
        }
    }

    /// Everything else that a policy says has its sentence too.
    #[test]
    fn a_policy_is_read_out_whole() {
        let policy = br#"{"rules": [{"id": "a", "class": "gitPush", "effect": "allow"}],
            "modes": {"review": {"deny_commands": ["git push", "rm -rf"], "rules": [{"id": "ro", "class": "gitCommit", "effect": "deny"}]}},
            "autonomy": {"x": "actFreely", "y": "proposeOnly", "z": "actWithApproval"}, "delegation": {"max_depth": 2},
            "network": {"deny": ["192.0.2.0/24"], "allow": ["10.20.0.5/32", {"cidr": "10.9.0.0/16", "ports": [80, 443], "proto": "tcp"}], "resolvers": "deny"},
            "limits": {"paths": 5}}"#;
        let managed = br#"{"rules": [{"id": "m", "class": "secretAccess", "effect": "prompt"}], "network": {"deny": ["198.51.100.0/24"], "allow_holes": false}}"#;
        let policy = Policy::load(Some(("p", policy)), Some(("m", managed))).expect("valid");
        let sentences = super::policy(&policy);
        let names: Vec<&str> = sentences.iter().map(|sentence| sentence.rule.as_str()).collect();
        assert_eq!(
            names,
            [
                "a",
                "ro",
                "net:review",
                "autonomy:x",
                "autonomy:y",
                "autonomy:z",
                "network",
                "network",
                "network",
                "network",
                "delegation",
                "limit:paths",
                "m",
                "network",
                "network"
            ]
        );
        let all: String = sentences.iter().map(|sentence| format!("{}\n", sentence.text)).collect();
        for part in [
            "`git push` or `rm -rf`",
            "192.0.2.0/24",
            "10.9.0.0/16 at ports 80 or 443 over TCP",
            "depth 2",
            "By the managed file: everywhere, reading a secret",
        ] {
            assert!(all.contains(part), "{part}\n{all}");
        }
        assert!(sentences.iter().all(|sentence| sentence.text.ends_with('.')));
    }
}
