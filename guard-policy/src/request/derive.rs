//! What follows from the commands of a request: their classes and, where they name them, files, refs and hosts
//! (`R-64`). It is done once, where a request comes in from outside; what the kernel saw is sorted by its own facts.

use super::{Facet, Request, Source};
use crate::facts::shell::{self, ShellError};

impl Request {
    /// Adds what the commands say. A facet that the caller names keeps its values and gets theirs beside them, so
    /// that neither text hides the other; one that nobody names stays silent.
    ///
    /// A command that cannot be read whole makes the request one that is refused (`R-61`).
    pub fn derive(&mut self) {
        let Some(commands) = self.action.commands.as_deref().filter(|commands| !commands.is_empty()) else {
            return;
        };
        let facts = match read(commands) {
            Ok(facts) => facts,
            Err(error) => {
                self.unread = Some(error);
                return;
            }
        };
        self.action.add_classes(facts.action.classes);
        let sources = &mut self.sources;
        merge(&mut self.action.paths, facts.action.paths, Facet::Paths, sources);
        merge(&mut self.action.refs, facts.action.refs, Facet::Refs, sources);
        merge(&mut self.action.hosts, facts.action.hosts, Facet::Hosts, sources);
    }
}

/// Reads each command alone, since no quote reaches from one into the next, and all of them for what they do together.
fn read(commands: &[String]) -> Result<crate::facts::Facts, ShellError> {
    if let [one] = commands {
        return shell::read(one);
    }
    for command in commands {
        shell::read(command)?;
    }
    shell::read(&commands.join("\n"))
}

fn merge<V: PartialEq>(
    known: &mut Option<Vec<V>>,
    found: Option<Vec<V>>,
    facet: Facet,
    sources: &mut super::Sources,
) {
    let Some(found) = found else { return };
    match known {
        Some(known) => {
            for value in found {
                if !known.contains(&value) {
                    known.push(value);
                }
            }
        }
        None => {
            *known = Some(found);
            *sources = std::mem::take(sources).with(facet, Source::Parsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use guard_common::ActionClass::{FileDelete, GitPush, ProcessSpawn};

    use crate::request::{Line, Request, Source};
    use crate::{Context, Policy, decide};

    fn derived(action: &str) -> Request {
        match Line::parse(format!(r#"{{"action": {action}}}"#).as_bytes()) {
            Ok(Line::Request(request)) => *request,
            other => panic!("{other:?}"),
        }
    }

    /// `R-64`: classes and facets of a text, with where they come from, beside what the caller says.
    #[test]
    fn commands_bring_their_classes_and_facets() {
        let pushed = derived(r#"{"commands": ["git push origin HEAD:main"]}"#);
        assert!(pushed.action.classes.contains(&GitPush) && pushed.action.classes.contains(&ProcessSpawn));
        assert_eq!(pushed.action.refs.as_ref().map(|refs| refs[0].clean()), Some("main"));
        assert_eq!(pushed.sources.get(crate::request::Facet::Refs), Source::Parsed);
        let both = derived(r#"{"refs": ["feature/x"], "commands": ["git push origin main"]}"#);
        let refs: Vec<&str> = both.action.refs.iter().flatten().map(|name| name.clean()).collect();
        assert_eq!(refs, ["feature/x", "main"], "a caller's word does not hide the text's");
        let chain = derived(r#"{"commands": ["cd x && rm -rf y", "git push"]}"#);
        assert!(chain.action.classes.contains(&FileDelete) && chain.action.classes.contains(&GitPush));
        assert_eq!(chain.action.refs, None, "a push without a refspec says nothing");
        assert_eq!(derived(r#"{"commands": []}"#).action.classes, []);
    }

    /// `R-61`: a text that is not understood is refused, and so is one with too many parts.
    #[test]
    fn commands_that_cannot_be_read_are_refused() {
        let many = format!("{}curl x", "true;".repeat(64));
        for (command, rule) in [
            ("echo 'open", "engine:command"),
            (many.as_str(), "limit:segments"),
            ("a\u{0}b", "engine:command"),
        ] {
            let action = serde_json::json!({"commands": [command]}).to_string();
            let context = Context::new(jiff::Timestamp::UNIX_EPOCH, true);
            let decision = decide(&Policy::builtin(), &derived(&action), &context);
            assert_eq!((decision.outcome.as_str(), decision.rule.as_str()), ("deny", rule), "{command:?}");
        }
        let split = derived(r#"{"commands": ["echo 'a", "b'"]}"#);
        assert!(split.unread.is_some(), "no quote reaches into the next command");
    }
}
