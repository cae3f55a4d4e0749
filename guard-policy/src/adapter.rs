//! What each way in which acts reach the engine can do, and what it cannot (`C-130`): said of every adapter, shown to operators, and
//! what trust in reported facets rests on (`R-64`).

use serde::Serialize;

/// One adapter's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Adapter {
    /// As requests name it.
    pub adapter: &'static str,
    /// It can take tools away from what the agent is offered.
    pub filters_tools: bool,
    /// A call waits for the answer, and does not happen against it.
    pub intercepts_calls: bool,
    /// It learns how a call or the run ended.
    pub observes_completion: bool,
    /// It sees what the runner's own tools do.
    pub sees_native_tools: bool,
    /// Tools that run inside the runner are within a sandbox.
    pub sandboxes_in_process: bool,
    /// What a reader must not be mistaken about.
    pub note: &'static str,
}

/// Every adapter.
pub const ADAPTERS: [Adapter; 4] = [
    Adapter {
        adapter: "launch",
        filters_tools: false,
        intercepts_calls: false,
        observes_completion: true,
        sees_native_tools: true,
        sandboxes_in_process: true,
        note: "guardctl run: no tool call is seen, but what it does to processes, files and connections is; deletions of old files wait, the rest of what is outside is refused",
    },
    Adapter {
        adapter: "embedded",
        filters_tools: false,
        intercepts_calls: true,
        observes_completion: true,
        sees_native_tools: true,
        sandboxes_in_process: false,
        note: "a harness that asks Policy.Decide before each call and keeps to the answer: its in-process file tools are NOT sandboxed, so its tool surface and this engine are their only boundary; launch it with guardctl run to have one below",
    },
    Adapter {
        adapter: "mcp",
        filters_tools: false,
        intercepts_calls: true,
        observes_completion: true,
        sees_native_tools: false,
        sandboxes_in_process: false,
        note: "a gate that asks Policy.Decide before it passes a call on; guard itself ships none yet",
    },
    Adapter {
        adapter: "claude-code",
        filters_tools: false,
        intercepts_calls: false,
        observes_completion: false,
        sees_native_tools: false,
        sandboxes_in_process: false,
        note: "started with --dangerously-skip-permissions its own tool calls are NOT interceptable, and guard ships no hook yet: its read, write and edit tools run unseen by this adapter; launched with guardctl run, what they do is seen and fenced",
    },
];

/// Whether this adapter can keep a call from happening; one that nobody knows cannot. `grpc` is what a harness calls itself
/// that has no other name.
#[must_use]
pub fn intercepts(name: &str) -> bool {
    name == "grpc" || ADAPTERS.iter().any(|row| row.adapter == name && row.intercepts_calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `C-130`, `C-131`, `C-132`: the rows that operators must not be mistaken about, entry by entry.
    #[test]
    fn each_adapter_says_what_it_cannot_do() {
        let row = |name: &str| ADAPTERS.iter().find(|row| row.adapter == name).copied().expect(name);
        let embedded = row("embedded");
        assert!(embedded.intercepts_calls && !embedded.sandboxes_in_process);
        assert!(embedded.note.contains("NOT sandboxed"));
        let claude = row("claude-code");
        assert!(!claude.intercepts_calls && !claude.sees_native_tools && !claude.sandboxes_in_process);
        assert!(
            claude.note.contains("--dangerously-skip-permissions")
                && claude.note.contains("NOT interceptable")
        );
        for (name, trusted) in [
            ("embedded", true),
            ("grpc", true),
            ("mcp", true),
            ("claude-code", false),
            ("launch", false),
            ("?", false),
        ] {
            assert_eq!(intercepts(name), trusted, "{name}");
        }
        for row in ADAPTERS {
            let json = serde_json::to_value(row).expect("an object");
            assert_eq!(json.as_object().map(serde_json::Map::len), Some(7), "name, five entries, note");
        }
    }
}
