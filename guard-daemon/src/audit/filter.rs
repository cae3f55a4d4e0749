//! Which records somebody wants to see.

use guard_proto::v1;

use super::record::Record;

/// A condition on records; an empty part asks nothing.
#[derive(Clone, Debug, Default)]
pub struct Filter(v1::AuditFilter);

/// A filter that no record can fit.
#[derive(Debug, thiserror::Error)]
#[error("{what} `{word}` is none; there are: {known}")]
pub struct UnknownWord {
    what: &'static str,
    word: String,
    known: String,
}

const KINDS: [&str; 7] = ["decision", "approval", "override", "policy", "sandbox", "loss", "daemon"];
const OUTCOMES: [&str; 4] = ["allow", "allow_with_redaction", "defer_for_approval", "deny"];
const EFFECTS: [&str; 5] = ["done", "refused", "fenced", "killed", "none"];

impl Filter {
    /// Takes the words over, after a check that they mean something: a filter with a slip in it would show nothing,
    /// which reads like "nothing happened".
    ///
    /// # Errors
    /// A word is not one of its kind.
    pub fn new(filter: v1::AuditFilter) -> Result<Self, UnknownWord> {
        let classes: Vec<&str> =
            guard_common::ActionClass::ALL.into_iter().map(|class| class.as_str()).collect();
        known("kind", &filter.kinds, &KINDS)?;
        known("outcome", &filter.outcomes, &OUTCOMES)?;
        known("effect", &filter.effects, &EFFECTS)?;
        known("action class", &filter.classes, &classes)?;
        Ok(Self(filter))
    }

    /// Whether this line is wanted. A line that is no record is: whoever reads the record must see it.
    #[must_use]
    pub fn fits(&self, line: &str) -> bool {
        let wanted = &self.0;
        if *wanted == v1::AuditFilter::default() {
            return true;
        }
        // Most lines of a long record fall out here, before they are parsed.
        let quick = [&wanted.agent_id, &wanted.session, &wanted.text];
        if quick.into_iter().any(|part| plain(part) && !line.contains(part.as_str())) {
            return false;
        }
        let Ok(record) = Record::read(line) else { return true };
        let within = |list: &[String], word: &str| list.is_empty() || list.iter().any(|item| item == word);
        let same = |wanted: &str, word: &str| wanted.is_empty() || wanted == word;
        let at = record.ts.as_nanosecond();
        same(&wanted.agent_id, &record.agent_id)
            && same(&wanted.session, &record.principal.session)
            && within(&wanted.kinds, &record.kind)
            && within(&wanted.outcomes, &record.decision.outcome)
            && within(&wanted.effects, &record.effect)
            && (wanted.classes.is_empty()
                || record.request.action.classes.iter().any(|class| wanted.classes.contains(class)))
            && (wanted.text.is_empty() || line.contains(&wanted.text) || record.act().contains(&wanted.text))
            && at >= i128::from(wanted.since_ns)
            && (wanted.until_ns == 0 || at < i128::from(wanted.until_ns))
    }
}

/// Whether the text stands in JSON as it is.
fn plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\')
}

fn known(what: &'static str, words: &[String], all: &[&str]) -> Result<(), UnknownWord> {
    match words.iter().find(|word| !all.contains(&word.as_str())) {
        None => Ok(()),
        Some(word) => Err(UnknownWord { what, word: word.clone(), known: all.join(", ") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"seq":7,"ts":"2026-11-30T12:00:00.5Z","prev":"","kind":"decision","agent_id":"a-1","principal":{"session":"s-1"},"request":{"action":{"classes":["gitPush","networkEgress"],"commands":["git push \"x\""]}},"decision":{"outcome":"deny","rule":"r"},"effect":"refused","hash":""}"#;

    fn fits(change: impl Fn(&mut v1::AuditFilter)) -> bool {
        let mut filter = v1::AuditFilter::default();
        change(&mut filter);
        Filter::new(filter).expect("known words").fits(LINE)
    }

    /// Each part alone lets the record through when it names what the record has, and keeps it out otherwise.
    #[test]
    fn every_part_counts() {
        assert!(fits(|_| ()));
        let noon = 1_796_040_000_000_000_000_u64;
        type Change = fn(&mut v1::AuditFilter, bool);
        let parts: [(&str, Change); 9] = [
            ("agent", |f, yes| f.agent_id = if yes { "a-1" } else { "a-2" }.to_owned()),
            ("session", |f, yes| f.session = if yes { "s-1" } else { "s" }.to_owned()),
            ("kind", |f, yes| f.kinds = vec![if yes { "decision" } else { "loss" }.to_owned()]),
            ("outcome", |f, yes| f.outcomes = vec![if yes { "deny" } else { "allow" }.to_owned()]),
            ("effect", |f, yes| f.effects = vec![if yes { "refused" } else { "done" }.to_owned()]),
            ("class", |f, yes| f.classes = vec![if yes { "networkEgress" } else { "gitCommit" }.to_owned()]),
            ("text", |f, yes| f.text = if yes { "push \"x\"" } else { "pull" }.to_owned()),
            ("since", |f, yes| f.since_ns = 1_796_040_000_000_000_000 + u64::from(!yes) * 1_000_000_000),
            ("until", |f, yes| f.until_ns = 1_796_040_000_000_000_000 + u64::from(yes) * 1_000_000_000),
        ];
        assert_eq!(Record::read(LINE).expect("a record").ts.as_nanosecond(), i128::from(noon) + 500_000_000);
        for (name, change) in parts {
            assert!(fits(|filter| change(filter, true)), "{name}");
            assert!(!fits(|filter| change(filter, false)), "{name}");
        }
    }

    #[test]
    fn a_word_that_means_nothing_is_refused() {
        let filter = v1::AuditFilter { classes: vec!["gitpush".to_owned()], ..Default::default() };
        let error = Filter::new(filter).expect_err("no such class").to_string();
        assert!(error.contains("`gitpush`") && error.contains("gitPush"), "{error}");
    }

    #[test]
    fn what_is_no_record_is_always_shown() {
        let filter = v1::AuditFilter { kinds: vec!["loss".to_owned()], ..Default::default() };
        assert!(Filter::new(filter).expect("known words").fits("garbage"));
    }
}
