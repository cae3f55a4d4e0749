//! The words of a command, and what it means that they say a verb.

/// One word of a command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// What the program gets.
    Known(String),
    /// What only the shell or the kernel knows: any number of any words.
    Unknown,
}

impl Word {
    /// Its text, if that is known.
    #[must_use]
    pub fn known(&self) -> Option<&str> {
        match self {
            Self::Known(text) => Some(text),
            Self::Unknown => None,
        }
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.known() == Some(text)
    }

    /// Whether it is known and an option.
    pub(super) fn option(&self) -> Option<&str> {
        self.known().filter(|text| text.len() > 1 && text.starts_with('-'))
    }
}

/// The words of these texts.
pub(super) fn known<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Word> {
    texts.into_iter().map(|text| Word::Known(text.to_owned())).collect()
}

/// The options that a program takes before its verb. One that is in neither list may or may not take the next
/// word, so both are tried.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    /// These take the next word.
    pub(super) values: &'static str,
    /// These do not.
    pub(super) flags: &'static str,
}

fn lists(list: &str, option: &str) -> bool {
    list.split(' ').any(|listed| listed == option)
}

/// Whether these arguments may say `verb`.
///
/// A verb is one of the alternatives that commas separate. Each is made of
/// - words, which come in this order, options aside;
/// - `-x`, `--long`: an option that stands anywhere after them (`-x` also in a cluster);
/// - `!-x`: an option that stands nowhere after them;
/// - `^S!si`: an argument that is a cluster which starts with `S` and has none of the letters after the `!`;
/// - `?`, `??`: at least so many operands after them;
/// - `.`: no operand at all.
///
/// The empty verb is said by whatever is said. What is not known may be anything.
pub(super) fn say(arguments: &[Word], verb: &str, options: Options) -> bool {
    verb.is_empty() || verb.split(", ").any(|alternative| says(arguments, alternative, options))
}

fn says(arguments: &[Word], verb: &str, options: Options) -> bool {
    let is_word = |token: &&str| !token.starts_with(['-', '!', '?', '^']) && *token != ".";
    let words: Vec<&str> = verb.split(' ').take_while(is_word).collect();
    let conditions: Vec<&str> = verb.split(' ').skip(words.len()).collect();
    // Where the words may end; where options are not known there are several ways to read them.
    let mut seen = vec![false; (arguments.len() + 1) * (words.len() + 1)];
    let mut open = vec![(0, 0)];
    while let Some((at, said)) = open.pop() {
        let state = at * (words.len() + 1) + said;
        if std::mem::replace(&mut seen[state], true) {
            continue;
        }
        if said == words.len() {
            if conditions.iter().all(|condition| holds(&arguments[at..], condition)) {
                return true;
            }
            continue;
        }
        match arguments.get(at) {
            Some(Word::Unknown) => return true,
            Some(Word::Known(text)) if text == words[said] => open.push((at + 1, said + 1)),
            Some(Word::Known(text)) if text.starts_with(['-', '+']) => {
                // What is not known may be more words than the option takes, so it stays.
                let value = lists(options.values, text) && arguments.get(at + 1) != Some(&Word::Unknown);
                if !value {
                    open.push((at + 1, said));
                }
                let alone = text.contains('=') || text.starts_with('+') || text == "--";
                if value || !(alone || lists(options.flags, text)) {
                    open.push(((at + 2).min(arguments.len()), said));
                }
            }
            _ => {}
        }
    }
    false
}

fn holds(arguments: &[Word], condition: &str) -> bool {
    let unknown = || arguments.contains(&Word::Unknown);
    if let Some(option) = condition.strip_prefix('!') {
        // What is not known does not make a harmless act of another one.
        return !arguments.iter().filter_map(Word::option).any(|given| same_option(given, option));
    }
    if let Some(cluster) = condition.strip_prefix('^') {
        let (first, without) = cluster.split_once('!').unwrap_or((cluster, ""));
        let is = |given: &str| {
            given.strip_prefix('-').is_some_and(|letters| {
                letters.starts_with(first) && !letters.contains(|letter| without.contains(letter))
            })
        };
        return unknown() || arguments.iter().filter_map(Word::option).any(is);
    }
    if condition.starts_with('-') {
        return unknown()
            || arguments.iter().filter_map(Word::option).any(|given| same_option(given, condition));
    }
    let operands = arguments.iter().filter(|word| word.option().is_none()).count();
    if condition == "." { operands == 0 || unknown() } else { unknown() || operands >= condition.len() }
}

/// Whether what is given is this option: itself, with a value, cut short as many programs allow, or in a cluster.
fn same_option(given: &str, option: &str) -> bool {
    let name = given.split_once('=').map_or(given, |(name, _)| name);
    if let Some(long) = option.strip_prefix("--") {
        return name.strip_prefix("--").is_some_and(|short| !short.is_empty() && long.starts_with(short));
    }
    let letter = &option[1..];
    given == option || (letter.len() == 1 && !given.starts_with("--") && given[1..].contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The small language of verbs, each of its forms with what is one and what is none.
    #[test]
    fn verbs_are_said_or_not() {
        let options = Options { values: "-C --prefix", flags: "-q --quiet" };
        for (verb, yes, no) in [
            ("install, i", "install x", "x install"),
            ("install, i", "i", "installx"),
            ("install", "-C ls install", "-C install ls"),
            ("install", "-q install", "-q ls install"),
            ("install", "--odd ls install", "--odd=ls ls install"),
            ("pip install", "pip -x install", "pip ls"),
            ("pip install", "-x pip -y z install", "install pip"),
            ("branch -d", "branch x -d", "branch x"),
            ("branch -d", "branch -fd x", "branch --d-x"),
            ("branch --delete", "branch --del x", "branch --deleted"),
            ("clean !-n", "clean -f", "clean -fn"),
            ("clean !--dry-run", "clean", "clean --dry"),
            ("^S!si", "-Syu x", "-Ss x"),
            ("set ?", "set a", "set -x"),
            ("set ??", "set a b", "set a"),
            (".", "--verbose", "run"),
        ] {
            let words = |text: &str| known(text.split(' '));
            assert!(say(&words(yes), verb, options), "{verb}: {yes}");
            assert!(!say(&words(no), verb, options), "{verb}: {no}");
        }
    }

    /// What is not known may be the worst, and does not make anything milder.
    #[test]
    fn what_is_not_known_may_be_anything() {
        let unknown = [Word::Unknown];
        for verb in ["install", "pip install", "branch -d", "", ".", "set ??", "^S!s"] {
            assert!(say(&unknown, verb, Options::default()), "{verb}");
        }
        let tail = [known(["clean"]), vec![Word::Unknown]].concat();
        assert!(say(&tail, "clean !-n", Options::default()));
        assert!(!say(&known(["ls"]), "clean", Options::default()));
    }
}
