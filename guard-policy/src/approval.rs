//! What "remember this answer" writes (`C-080` … `C-086`, `R-21`): one rule, in one scope, about the act that was
//! asked about and its like, that ends by itself.

use guard_common::ActionClass;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::request::Action;
use crate::value::{HostPattern, PathPattern, Ref, RefPattern};

/// The longest time that an answer is remembered.
pub const MAX_TTL: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Why an answer cannot be remembered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalError {
    /// It would last too long, or not at all.
    #[error("an answer is remembered for up to 30 days, and for more than no time; name a time like 4h")]
    Ttl,
    /// The act does not say what it touches, so the rule would be about everything.
    #[error("the act does not say its {facet}; what is remembered would be about all of them")]
    Silent {
        /// The facet.
        facet: &'static str,
    },
    /// A value that no pattern says exactly.
    #[error("`{value}` cannot be written as a pattern")]
    NoPattern {
        /// The value.
        value: String,
    },
}

/// The rule that remembers a yes to `class` of this act.
///
/// # Errors
/// [`ApprovalError`]; then the yes is good for the act itself and nothing more.
pub fn remember(
    action: &Action,
    class: ActionClass,
    scope: &str,
    id: &str,
    now: Timestamp,
    ttl: SignedDuration,
) -> Result<Value, ApprovalError> {
    let expiry = now.checked_add(ttl).map_err(|_| ApprovalError::Ttl)?;
    if ttl <= SignedDuration::ZERO || ttl > MAX_TTL {
        return Err(ApprovalError::Ttl);
    }
    let needed = match class {
        ActionClass::GitPush => ("refs", action.refs.is_some()),
        ActionClass::NetworkEgress => ("hosts", action.hosts.is_some()),
        ActionClass::FileDelete | ActionClass::FileWriteOutsideWorktree | ActionClass::SecretAccess => {
            ("paths", action.paths.is_some())
        }
        _ => ("", true),
    };
    if !needed.1 {
        return Err(ApprovalError::Silent { facet: needed.0 });
    }
    let mut constraints = Map::new();
    let mut name = |facet: &str, patterns: Vec<String>, reads: fn(&str) -> bool| {
        // A value with a wildcard in it would be a wider pattern than itself.
        let wild =
            |pattern: &&String| pattern.trim_end_matches("/**").contains(['*', '?', '!']) || !reads(pattern);
        match patterns.iter().find(wild) {
            Some(value) => Err(ApprovalError::NoPattern { value: value.clone() }),
            None if patterns.is_empty() => Ok(()),
            None => {
                constraints.insert(facet.to_owned(), json!(patterns));
                Ok(())
            }
        }
    };
    let refs = action.refs.iter().flatten().map(branch).collect();
    name("refs", refs, |pattern| RefPattern::parse(pattern).is_ok())?;
    let paths = action.paths.iter().flatten().map(|path| directory(path.clean())).collect();
    name("paths", paths, |pattern| PathPattern::parse(pattern).is_ok())?;
    let hosts = action.hosts.iter().flatten().map(|host| host.raw().to_owned()).collect();
    name("hosts", hosts, |pattern| HostPattern::parse(pattern).is_ok())?;
    let mut rule = json!({
        "id": id, "class": class.as_str(), "effect": "allow", "provenance": "remembered",
        "expires_at": expiry.to_string(),
    });
    if !scope.is_empty() {
        rule["scope"] = scope.into();
    }
    if !constraints.is_empty() {
        rule["constraints"] = constraints.into();
    }
    Ok(rule)
}

/// `feature/login` stands for `feature/**`; a protected ref, a tag and a branch without a slash for themselves.
fn branch(name: &Ref) -> String {
    let short = name.clean();
    let protected = short.starts_with("refs/") || short.starts_with("release/");
    match short.rsplit_once('/') {
        Some((before, _)) if !protected => format!("{before}/**"),
        _ => short.to_owned(),
    }
}

/// A file in the worktree stands for its directory; one outside, or at the top, for itself.
fn directory(path: &str) -> String {
    match path.rsplit_once('/') {
        Some((before, _)) if !path.starts_with('/') && !before.is_empty() => format!("{before}/**"),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Policy, Request, decide};

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn remembered(action: &str, ttl: SignedDuration) -> Result<Value, ApprovalError> {
        let request = Request::parse(format!(r#"{{"action": {action}}}"#).as_bytes()).expect("valid");
        let class = request.action.classes[0];
        remember(&request.action, class, "agent:a", "remembered-1", Timestamp::UNIX_EPOCH, ttl)
    }

    /// `C-080`, `C-081`, `C-082`, `C-083`, `C-084`, `R-21`: the rule has scope, constraints, provenance and an end.
    #[test]
    fn answers_are_remembered_as_narrow_rules() {
        let table = [
            (r#"{"classes": ["gitPush"], "refs": ["feature/login"]}"#, r#"{"refs":["feature/**"]}"#),
            (r#"{"classes": ["gitPush"], "refs": ["a/b/c"]}"#, r#"{"refs":["a/b/**"]}"#),
            (r#"{"classes": ["gitPush"], "refs": ["topic"]}"#, r#"{"refs":["topic"]}"#),
            (r#"{"classes": ["gitPush"], "refs": ["main"]}"#, r#"{"refs":["main"]}"#),
            (r#"{"classes": ["gitPush"], "refs": ["release/2"]}"#, r#"{"refs":["release/2"]}"#),
            (r#"{"classes": ["gitPush"], "refs": ["refs/tags/v/1"]}"#, r#"{"refs":["refs/tags/v/1"]}"#),
            (r#"{"classes": ["fileDelete"], "paths": ["src/a/b.rs"]}"#, r#"{"paths":["src/a/**"]}"#),
            (r#"{"classes": ["fileDelete"], "paths": ["notes"]}"#, r#"{"paths":["notes"]}"#),
            (r#"{"classes": ["fileDelete"], "paths": ["/etc/a/b"]}"#, r#"{"paths":["/etc/a/b"]}"#),
            (
                r#"{"classes": ["networkEgress"], "hosts": ["a.example.org"]}"#,
                r#"{"hosts":["a.example.org"]}"#,
            ),
        ];
        for (action, constraints) in table {
            let rule = remembered(action, HOUR).expect(action);
            assert_eq!(rule["constraints"].to_string(), constraints, "{action}");
            assert_eq!((&rule["scope"], &rule["provenance"]), (&json!("agent:a"), &json!("remembered")));
            assert_eq!(rule["expires_at"], "1970-01-01T01:00:00Z");
            // It loads, allows what was asked, for this agent, until its end.
            let policy = json!({"rules": [rule]}).to_string();
            let policy = Policy::load(Some(("p", policy.as_bytes())), None).expect("a rule");
            let asked = |agent: &str, at: i64| {
                let request = format!(r#"{{"principal": {{"agent": "{agent}"}}, "action": {action}}}"#);
                let now = Timestamp::from_second(at).expect("a time");
                let request = Request::parse(request.as_bytes()).expect("valid");
                decide(&policy, &request, &Context::new(now, true)).rule.to_string()
            };
            assert_eq!(asked("a", 3599), "remembered-1");
            assert_ne!(asked("a", 3600), "remembered-1", "it ends by itself");
            assert_ne!(asked("b", 0), "remembered-1");
        }
    }

    /// `C-086`, `R-21`: what cannot be remembered narrowly is not remembered.
    #[test]
    fn what_would_be_too_wide_is_not_remembered() {
        let silent = |action| remembered(action, HOUR).expect_err(action);
        assert_eq!(silent(r#"{"classes": ["gitPush"]}"#), ApprovalError::Silent { facet: "refs" });
        assert_eq!(silent(r#"{"classes": ["networkEgress"]}"#), ApprovalError::Silent { facet: "hosts" });
        assert!(matches!(
            silent(r#"{"classes": ["fileDelete"], "paths": ["a*/b"]}"#),
            ApprovalError::NoPattern { .. }
        ));
        let push = r#"{"classes": ["gitPush"], "refs": ["feature/x"]}"#;
        for ttl in [SignedDuration::ZERO, -HOUR, MAX_TTL + HOUR, SignedDuration::MAX] {
            assert_eq!(remembered(push, ttl), Err(ApprovalError::Ttl));
        }
    }
}
