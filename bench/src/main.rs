//! The policy engine beside cedar-policy and regorus, on policies that say the same.
//!
//! Rule number i denies agent i a push to its branch `release-i`. *Hit* asks as the agent in the middle, *miss* as one
//! that no rule names. guard answers for five classes, four facets, commands and trace; the other two answer for the push
//! alone, which favours them. Samples of the engines are interleaved, and medians are compared; the spread is printed.
//!
//! Prints a table, and writes the figures as JSON to the file that is named.

use std::hint::black_box;
use std::str::FromStr;
use std::time::Instant;

use cedar_policy::{Authorizer, Context as Facts, Entities, EntityUid, PolicySet, Request as Question};
use guard_policy::{Context, Outcome, Policy, Request, decide};
use serde_json::{Value, json};

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const SAMPLES: usize = 15;
/// How long one sample of one engine lasts, nanoseconds.
const SAMPLE: u128 = 8_000_000;

type Judge = Box<dyn FnMut() -> bool>;

struct Engine {
    name: &'static str,
    /// Whether the push is denied.
    judge: Judge,
    calls: u32,
    samples: Vec<f64>,
}

impl Engine {
    fn new(name: &'static str, mut judge: Judge) -> Self {
        let mut calls = 1_u32;
        loop {
            let start = Instant::now();
            for _ in 0..calls {
                black_box(judge());
            }
            if start.elapsed().as_nanos() > SAMPLE || calls >= 1 << 20 {
                return Self { name, judge, calls, samples: Vec::new() };
            }
            calls *= 2;
        }
    }

    fn sample(&mut self) {
        let start = Instant::now();
        for _ in 0..self.calls {
            black_box((self.judge)());
        }
        self.samples.push(start.elapsed().as_nanos() as f64 / f64::from(self.calls));
    }

    /// Median, and half the distance between the quartiles over it.
    fn result(&mut self) -> (f64, f64) {
        self.samples.sort_by(f64::total_cmp);
        let at = |share: usize| self.samples[self.samples.len() * share / 4];
        (at(2), (at(3) - at(1)) / 2.0 / at(2))
    }
}

fn guard_file(rules: usize) -> String {
    let rules: Vec<Value> = (0..rules)
        .map(|i| {
            json!({"id": format!("r-{i}"), "scope": format!("agent:agent-{i}"), "class": "gitPush",
                "effect": "deny", "constraints": {"refs": [format!("release-{i}")]}})
        })
        .collect();
    json!({"version": 1, "rules": rules}).to_string()
}

fn guard_policy(rules: usize) -> Policy {
    Policy::load(Some(("policy.json", guard_file(rules).as_bytes())), None).expect("a policy")
}

fn guard_request(agent: &str, branch: &str) -> Request {
    let request = json!({"id": "r", "principal": {"agent": agent, "session": "s", "workspace": "w", "space": "x", "mode": "m"},
        "action": {"classes": ["gitPush", "gitCommit", "networkEgress", "processSpawn", "fileWriteOutsideWorktree"],
            "paths": ["/srv/a", "/srv/b"], "refs": [branch], "hosts": ["github.com", "203.0.113.5"],
            "commands": ["git push origin HEAD"], "count": 2, "cents": 0}});
    Request::parse(request.to_string().as_bytes()).expect("a request")
}

fn guard(rules: usize, agent: &str, branch: &str) -> Judge {
    let (policy, request) = (guard_policy(rules), guard_request(agent, branch));
    let context = Context::new(jiff::Timestamp::now(), true);
    Box::new(move || decide(&policy, &request, &context).outcome == Outcome::Deny)
}

fn cedar(rules: usize, agent: &str, branch: &str) -> Judge {
    let mut text = String::from("permit(principal, action, resource);\n");
    for i in 0..rules {
        text.push_str(&format!(
            "forbid(principal == Agent::\"agent-{i}\", action == Action::\"gitPush\", resource) when {{ context.refs.contains(\"release-{i}\") }};\n"
        ));
    }
    let policies = PolicySet::from_str(&text).expect("policies");
    let uid = |text: String| EntityUid::from_str(&text).expect("an entity");
    let facts = Facts::from_json_value(json!({"refs": [branch]}), None).expect("a context");
    let question = Question::new(
        uid(format!("Agent::\"{agent}\"")),
        uid("Action::\"gitPush\"".to_owned()),
        uid("Repo::\"r\"".to_owned()),
        facts,
        None,
    )
    .expect("a request");
    let (authorizer, entities) = (Authorizer::new(), Entities::empty());
    Box::new(move || {
        authorizer.is_authorized(&question, &policies, &entities).decision() == cedar_policy::Decision::Deny
    })
}

fn rego(rules: usize, agent: &str, branch: &str) -> Judge {
    let mut text = String::from("package guard\nimport rego.v1\n");
    for i in 0..rules {
        text.push_str(&format!(
            "deny contains \"r-{i}\" if {{ input.agent == \"agent-{i}\"; input.class == \"gitPush\"; \"release-{i}\" in input.refs }}\n"
        ));
    }
    let mut engine = regorus::Engine::new();
    engine.add_policy("guard.rego".to_owned(), text).expect("policies");
    let input = json!({"agent": agent, "class": "gitPush", "refs": [branch]}).to_string();
    let input = regorus::Value::from_json_str(&input).expect("an input");
    Box::new(move || {
        engine.set_input(input.clone());
        let found = engine.eval_rule("data.guard.deny".to_owned()).expect("an answer");
        found.as_set().is_ok_and(|set| !set.is_empty())
    })
}

/// Single calls, for the tail: half and 99 of 100.
fn tail(rules: usize) -> (f64, f64) {
    let mut judge = guard(rules, &format!("agent-{}", rules / 2), &format!("release-{}", rules / 2));
    let mut calls: Vec<u128> = (0..50_000)
        .map(|_| {
            let start = Instant::now();
            black_box(judge());
            start.elapsed().as_nanos()
        })
        .collect();
    calls.sort_unstable();
    (calls[calls.len() / 2] as f64, calls[calls.len() * 99 / 100] as f64)
}

fn main() {
    let mut figures = Vec::new();
    println!("{:>6} {:<5} {:>12} {:>12} {:>12} {:>9} {:>9}  spread", "rules", "", "guard ns", "cedar ns", "regorus ns", "cedar ×", "regorus ×");
    for rules in SIZES {
        for (case, agent, branch) in [
            ("hit", format!("agent-{}", rules / 2), format!("release-{}", rules / 2)),
            ("miss", "nobody".to_owned(), "feature".to_owned()),
        ] {
            let mut engines = [
                Engine::new("guard", guard(rules, &agent, &branch)),
                Engine::new("cedar", cedar(rules, &agent, &branch)),
                Engine::new("regorus", rego(rules, &agent, &branch)),
            ];
            for engine in &mut engines {
                assert_eq!((engine.judge)(), case == "hit", "{} judges otherwise", engine.name);
            }
            for _ in 0..SAMPLES {
                engines.iter_mut().for_each(Engine::sample);
            }
            let [guard, cedar, rego] = engines.each_mut().map(Engine::result);
            println!(
                "{rules:>6} {case:<5} {:>12.0} {:>12.0} {:>12.0} {:>9.1} {:>9.1}  {:.0}% {:.0}% {:.0}%",
                guard.0, cedar.0, rego.0, cedar.0 / guard.0, rego.0 / guard.0,
                guard.1 * 100.0, cedar.1 * 100.0, rego.1 * 100.0,
            );
            figures.push(json!({"rules": rules, "case": case, "guard_ns": guard.0, "cedar_ns": cedar.0, "regorus_ns": rego.0,
                "spread": [guard.1, cedar.1, rego.1]}));
        }
    }
    let (half, most) = tail(1_000);
    println!("one decision at 1,000 rules: p50 {half:.0} ns, p99 {most:.0} ns (targets 2,000 and 10,000)");
    let file = guard_file(10_000);
    let mut loads: Vec<f64> = (0..11)
        .map(|_| {
            let start = Instant::now();
            black_box(Policy::load(Some(("policy.json", file.as_bytes())), None).expect("a policy"));
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    loads.sort_by(f64::total_cmp);
    println!("reading 10,000 rules into force: {:.1} ms (target 20)", loads[5]);
    if let Some(path) = std::env::args().nth(1) {
        let all = json!({"decisions": figures, "p50_ns": half, "p99_ns": most, "load_ms": loads[5]});
        std::fs::write(&path, format!("{all:#}\n")).expect("the figures are written");
    }
}
