//! The honesty matrix: what this host enforces, holds, only observes or misses, each word with the self-test behind it.
//!
//! Strength words: `enforced` the kernel decides on the object; `held` it waits, then is performed or granted;
//! `killed-after` it starts and is ended before it acts; `observed` it is recorded only; `not covered`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// How strongly something is covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Strength {
    #[serde(rename = "not covered")]
    NotCovered,
    #[serde(rename = "observed")]
    Observed,
    #[serde(rename = "killed-after")]
    KilledAfter,
    #[serde(rename = "held")]
    Held,
    #[serde(rename = "enforced")]
    Enforced,
}

impl Strength {
    /// The word on the wire and for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::NotCovered => "not covered",
            Self::Observed => "observed",
            Self::KilledAfter => "killed-after",
            Self::Held => "held",
            Self::Enforced => "enforced",
        }
    }
}

/// What a canary did and what it met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    pub did: String,
    pub expected: String,
    pub got: String,
    /// Milliseconds.
    pub ms: f64,
}

impl SelfTest {
    /// Whether the host did what was expected.
    pub fn passed(&self) -> bool {
        self.expected == self.got
    }
}

/// One action class on this host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassCoverage {
    pub class: String,
    pub strength: Strength,
    pub mechanism: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<SelfTest>,
}

/// One built-in address range on this host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RangeCoverage {
    pub range: String,
    pub strength: Strength,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<SelfTest>,
}

/// One layer that a launch puts around an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerCoverage {
    pub layer: String,
    pub strength: Strength,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_test: Option<SelfTest>,
}

/// A program type that this kernel refuses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    pub r#type: String,
    pub errno: String,
}

/// What is known of the BPF side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BpfCoverage {
    /// `loaded`, or why not.
    pub object: String,
    pub refused: Vec<Refused>,
}

/// Everything; `coverage --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Coverage {
    pub kernel: String,
    pub cgroup2: String,
    pub landlock_abi: u32,
    pub bpf: BpfCoverage,
    pub classes: Vec<ClassCoverage>,
    pub network: Vec<RangeCoverage>,
    pub layers: Vec<LayerCoverage>,
    /// What passes although one might think otherwise, each with its reason.
    pub holes: Vec<String>,
    pub adapters: Vec<serde_json::Value>,
    /// What is missing and how to get it.
    pub cures: Vec<String>,
    /// What the daemon did to this host, and what it could not try.
    pub notes: Vec<String>,
}

impl Coverage {
    /// The weakest word among what a launch relies on; printed on guardd's ready line.
    pub fn overall(&self) -> Strength {
        self.network
            .iter()
            .map(|range| range.strength)
            .chain(self.layers.iter().map(|layer| layer.strength))
            .min()
            .unwrap_or(Strength::NotCovered)
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let test = |test: &Option<SelfTest>| match test {
            Some(test) if test.passed() => format!("{}: {} ({:.1} ms)", test.did, test.got, test.ms),
            Some(test) => format!("{}: expected {}, got {}", test.did, test.expected, test.got),
            None => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "kernel {}   cgroup2 {}   Landlock ABI {}   BPF {}",
            self.kernel, self.cgroup2, self.landlock_abi, self.bpf.object
        );
        let _ = writeln!(text, "\n{:<26} {:<12} {:<30} SELF-TEST", "ACTION CLASS", "STRENGTH", "MECHANISM");
        for class in &self.classes {
            let _ = writeln!(
                text,
                "{:<26} {:<12} {:<30} {}",
                class.class,
                class.strength.word(),
                class.mechanism,
                test(&class.self_test)
            );
        }
        let _ = writeln!(text, "\n{:<26} {:<12} SELF-TEST", "ADDRESSES", "STRENGTH");
        for range in &self.network {
            let _ = writeln!(
                text,
                "{:<26} {:<12} {}",
                range.range,
                range.strength.word(),
                test(&range.self_test)
            );
        }
        let _ = writeln!(text, "\n{:<26} {:<12} SELF-TEST", "LAYER OF A LAUNCH", "STRENGTH");
        for layer in &self.layers {
            let _ = writeln!(
                text,
                "{:<26} {:<12} {}",
                layer.layer,
                layer.strength.word(),
                test(&layer.self_test)
            );
        }
        let _ = writeln!(
            text,
            "\n{:<14} {:<8} {:<11} {:<11} {:<13} {:<11} NOTE",
            "ADAPTER", "FILTERS", "INTERCEPTS", "COMPLETION", "NATIVE TOOLS", "IN-PROCESS"
        );
        for row in &self.adapters {
            let yes = |entry: &str| if row[entry].as_bool() == Some(true) { "yes" } else { "no" };
            let word = |entry: &str| row[entry].as_str().unwrap_or_default();
            let _ = writeln!(
                text,
                "{:<14} {:<8} {:<11} {:<11} {:<13} {:<11} {}",
                word("adapter"),
                yes("filters_tools"),
                yes("intercepts_calls"),
                yes("observes_completion"),
                yes("sees_native_tools"),
                yes("sandboxes_in_process"),
                word("note")
            );
        }
        for (title, lines) in [("HOLES", &self.holes), ("CURES", &self.cures), ("NOTES", &self.notes)] {
            if !lines.is_empty() {
                let _ = writeln!(text, "\n{title}");
                for line in lines {
                    let _ = writeln!(text, "- {line}");
                }
            }
        }
        if !self.bpf.refused.is_empty() {
            let _ = writeln!(text, "\nBPF PROGRAM TYPES REFUSED BY THIS KERNEL");
            for refused in &self.bpf.refused {
                let _ = writeln!(text, "- {}: {}", refused.r#type, refused.errno);
            }
        }
        text
    }
}
