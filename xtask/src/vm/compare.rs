//! Where two coverages differ.

use std::collections::BTreeMap;

use serde_json::Value;

/// What a coverage says of one thing: the word, and what its self-test got.
type Words = BTreeMap<(&'static str, String), String>;

/// A table of all classes and layers in both, and whatever else differs.
pub(crate) fn table(here: &Value, there: &Value) -> String {
    let (left, right) = (words(here), words(there));
    let kernel = |coverage: &Value| coverage["kernel"].as_str().unwrap_or("unknown").to_owned();
    let mut text = format!("{:<44} {:<26} {}\n", "COVERAGE", kernel(here), kernel(there));
    let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    for key in keys {
        let of = |words: &Words| words.get(key).cloned().unwrap_or_else(|| "-".to_owned());
        let (here, there) = (of(&left), of(&right));
        let (kind, name) = key;
        if *kind == "network" && here == there {
            continue;
        }
        let mark = if here == there { "" } else { "   <- differs" };
        text.push_str(&format!("{:<44} {here:<26} {there}{mark}\n", format!("{kind} {name}")));
    }
    text
}

fn words(coverage: &Value) -> Words {
    let mut words = Words::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for (kind, key) in [("classes", "class"), ("network", "range"), ("layers", "layer")] {
        for entry in coverage[kind].as_array().into_iter().flatten() {
            words.insert((kind, text(&entry[key])), text(&entry["strength"]));
        }
    }
    // What a kernel loads is told by what it refuses.
    for kind in ["lsm", "fentry"] {
        words.insert(("BPF program type", kind.to_owned()), "loads".to_owned());
    }
    for refused in coverage["bpf"]["refused"].as_array().into_iter().flatten() {
        words.insert(("BPF program type", text(&refused["type"])), text(&refused["errno"]));
    }
    words.insert(("landlock", "ABI".to_owned()), coverage["landlock_abi"].to_string());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_marked_and_equal_ranges_are_left_out() -> Result<(), serde_json::Error> {
        let here = serde_json::from_str(
            r#"{"kernel":"6.18","landlock_abi":7,"bpf":{"refused":[{"type":"lsm","errno":"EPERM"}]},
                "classes":[{"class":"gitPush","strength":"observed"}],
                "network":[{"range":"metadata","strength":"enforced"}]}"#,
        )?;
        let there = serde_json::from_str(
            r#"{"kernel":"6.1","landlock_abi":2,"bpf":{"refused":[]},
                "classes":[{"class":"gitPush","strength":"observed"}],
                "network":[{"range":"metadata","strength":"enforced"}]}"#,
        )?;
        let table = table(&here, &there);
        let line = |name: &str| table.lines().find(|line| line.contains(name)).unwrap_or_default();
        assert!(line("type lsm").contains("EPERM") && line("type lsm").contains("loads   <- differs"));
        assert!(line("gitPush").contains("observed") && !line("gitPush").contains("differs"));
        assert!(line("landlock ABI").contains("differs"));
        assert!(!table.contains("metadata"));
        Ok(())
    }
}
