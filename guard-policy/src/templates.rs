//! Policies to start from. They are the files under `examples/policies`, and every one of them loads, has no warning
//! and does what its line says.

/// A policy to start from.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its name.
    pub name: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
    /// The file.
    pub text: &'static str,
}

/// Every template, the most careful first.
pub const ALL: [Template; 5] = [
    Template {
        name: "review-only",
        about: "reads and comments; whatever changes something is denied",
        text: include_str!("../../examples/policies/review-only.json"),
    },
    Template {
        name: "cautious",
        about: "asks before anything that leaves the worktree; denies secrets, engines and writes outside",
        text: include_str!("../../examples/policies/cautious.json"),
    },
    Template {
        name: "ci",
        about: "for a machine that is thrown away and where nobody answers: nothing asks, nothing is published",
        text: include_str!("../../examples/policies/ci.json"),
    },
    Template {
        name: "balanced",
        about: "pushes feature branches and deletes what was built; asks or denies the rest that matters",
        text: include_str!("../../examples/policies/balanced.json"),
    },
    Template {
        name: "autonomous",
        about: "asks for protected refs and secrets only, and after many deletions",
        text: include_str!("../../examples/policies/autonomous.json"),
    },
];
