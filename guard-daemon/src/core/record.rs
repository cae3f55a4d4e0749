//! From what guardd observed to a line of the record: observation → request → decision → entry. One way, no state.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use guard_policy::{
    Action, Decision, Policy, Principal, Request,
    facts::{self, Age, Facts, FileOperation, Mark, Place},
};
use guard_proto::v1::{self, observation::Act};
use serde_json::{json, value::to_raw_value};

use super::{Core, approvals::Judged, scratch};
use crate::audit::{Effect, Entry, Kind};

/// The kernel's address table for everyone, or for one agent.
pub fn network(
    policy: &Policy,
    agent: Option<(&str, &v1::Principal)>,
    resolvers: &[std::net::IpAddr],
    now: jiff::Timestamp,
) -> Vec<v1::NetworkRule> {
    let id = agent.map_or("", |(id, _)| id);
    let principal = agent.map(|(_, principal)| principal_of(principal));
    guard_policy::network::compile(policy, principal.as_ref(), resolvers, now)
        .into_iter()
        .map(|rule| v1::NetworkRule {
            agent_id: id.to_owned(),
            address: rule.address.to_vec(),
            prefix: u32::from(rule.prefix),
            verdict: rule.verdict as u32,
            ports: rule
                .ports
                .iter()
                .map(|port| v1::PortRule {
                    low: u32::from(port.low),
                    high: u32::from(port.high),
                    protocol: u32::from(port.protocol),
                    verdict: port.verdict as u32,
                })
                .collect(),
            rule: rule.rule,
        })
        .collect()
}

/// The principal as the policy engine takes it; an empty part is an absent one.
pub fn principal_of(principal: &v1::Principal) -> Principal {
    let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Principal {
        agent: part(&principal.agent),
        session: part(&principal.session),
        workspace: part(&principal.workspace),
        space: part(&principal.space),
        mode: part(&principal.mode),
    }
}

/// The record of a request that came over gRPC.
pub fn of_request(request: &Request, decision: &Decision, generation: u64) -> Entry {
    let mut entry = Entry::new(Kind::Decision, Effect::None);
    fill(&mut entry, request, decision, generation);
    entry
}

/// The record of an override, beside that of the decision (C-093).
pub fn of_override(
    request: &Request,
    decision: &Decision,
    generation: u64,
    peer: &super::peer::Peer,
) -> Entry {
    let mut entry = Entry::new(Kind::Override, Effect::None);
    entry.principal = to_raw_value(&request.principal).ok();
    entry.request = to_raw_value(request).ok();
    entry.generation = Some(generation);
    entry.with_detail(&json!({"overridden": decision.overridden, "by_uid": peer.uid, "by_pid": peer.pid}))
}

fn fill(entry: &mut Entry, request: &Request, decision: &Decision, generation: u64) {
    entry.principal = to_raw_value(&request.principal).ok();
    entry.request = to_raw_value(request).ok();
    entry.decision = to_raw_value(decision).ok();
    entry.generation = Some(generation);
}

/// Judges one observation; `None` for one that says nothing.
pub fn judge(core: &Core, observation: v1::Observation) -> Option<Entry> {
    let act = observation.act.clone()?;
    if observation.ask != 0
        && let Some(judged) = core.approvals.take(&observation.agent_id, observation.ask)
    {
        return Some(waited(&observation, &act, &judged));
    }
    let facts = match &act {
        Act::Exec(exec) => facts::exec(&path_of(&observation.exe), &words(&exec.argv), exec.truncated),
        Act::Connect(connect) => facts::connect(
            <[u8; 16]>::try_from(connect.address.as_slice()).ok()?,
            u16::try_from(connect.port).ok().filter(|port| *port != 0),
            u8::try_from(connect.protocol).unwrap_or(0),
        ),
        Act::File(change) => {
            Facts { action: file_change(core, &observation.agent_id, change), ..Facts::default() }
        }
        Act::Read(read) => file_read(core, &observation.agent_id, read),
        Act::Unix(connect) => facts::unix_connect(&String::from_utf8_lossy(&connect.path)),
        Act::Socket(_) => Facts::default(),
        Act::Loss(loss) => return Some(lost(&observation, loss)),
        Act::Started(started) => {
            let agent = started.agent.clone()?;
            core.registry.started(agent.clone());
            let detail = json!({
                "event": "agent started",
                "command": String::from_utf8_lossy(&agent.argv0),
                "worktree": String::from_utf8_lossy(&agent.worktree),
                "uid": agent.uid,
            });
            return Some(lifecycle(core, &observation, Some(agent.pid)).with_detail(&detail));
        }
        Act::Ended(ended) => {
            let entry = lifecycle(core, &observation, None);
            core.registry.ended(&observation.agent_id);
            core.approvals.ended(&observation.agent_id);
            let detail = json!({"event": "agent ended", "status": ended.status, "left": ended.left});
            return Some(entry.with_detail(&detail));
        }
        Act::Listen(_) => Facts::default(),
        Act::Exit(_) | Act::Flow(_) | Act::Executable(_) => return Some(ended(core, &observation, &act)),
    };
    Some(decided(core, &observation, &act, facts))
}

/// What is lost by a change, and what else it touches.
fn file_change(core: &Core, agent_id: &str, change: &v1::FileChange) -> Action {
    let (path, other) = (path_of(&change.path), path_of(&change.other));
    let worktree = core.registry.subject(agent_id).map(|subject| path_of(&subject.worktree));
    let action = |operation, path: &Path, inside: bool, existed: bool| {
        let age = if existed { Age::Before } else { Age::Own };
        if !inside {
            return facts::file_change(operation, path, Place::Outside, age).action;
        }
        let relative = worktree.as_ref().and_then(|worktree| path.strip_prefix(worktree).ok());
        // The worktree itself.
        let relative = relative.map(|path| if path == Path::new("") { Path::new(".") } else { path });
        facts::file_change(operation, relative.unwrap_or(path), Place::Worktree, age).action
    };
    let existed = change.existed_before && !scratch::is_gits_own(&change.operation, &path, &other);
    let operation = match change.operation.as_str() {
        "unlink" | "rmdir" => FileOperation::Remove,
        "truncate" => FileOperation::Truncate,
        _ => FileOperation::Change,
    };
    let mut whole = action(operation, &path, change.inside_worktree, existed);
    if matches!(change.operation.as_str(), "rename" | "exchange") {
        let operation = if existed { FileOperation::Replace } else { FileOperation::Change };
        let onto = action(operation, &other, change.other_inside_worktree, existed);
        whole.add_classes(onto.classes);
        // A path that cannot be read leaves all of them unknown.
        whole.paths = whole.paths.zip(onto.paths).map(|(first, second)| [first, second].concat());
    }
    if change.objects > 1 {
        whole.count = Some(change.objects);
    }
    whole
}

/// A secret that was opened, whatever its name: what the view hides is one (C-020).
fn file_read(core: &Core, agent_id: &str, read: &v1::FileRead) -> Facts {
    let path = path_of(&read.path);
    let worktree = core.registry.subject(agent_id).map(|subject| path_of(&subject.worktree));
    let relative = worktree.as_ref().filter(|_| read.inside_worktree);
    let relative = relative.and_then(|worktree| path.strip_prefix(worktree).ok());
    let named = relative.unwrap_or(&path).to_string_lossy();
    let mut facts = facts::file_read(&named, &core.settings.secrets());
    facts.action.add_classes([guard_common::ActionClass::SecretAccess]);
    facts
}

/// The request of an act that waits, and what people are shown of it; `None` for what cannot wait.
pub fn asked(core: &Core, observation: &v1::Observation) -> Option<(Request, Vec<Mark>, serde_json::Value)> {
    let Some(act @ Act::File(change)) = &observation.act else { return None };
    let facts = Facts { action: file_change(core, &observation.agent_id, change), ..Facts::default() };
    let subject = core.registry.subject(&observation.agent_id);
    let principal = subject.map(|subject| principal_of(&subject.principal)).unwrap_or_default();
    let request = Request { sources: facts.sources, ..Request::new(principal, facts.action) };
    Some((request, facts.marks, detail(act, &[])))
}

/// The record of an act that waited: what was judged then, and how it ended.
fn waited(observation: &v1::Observation, act: &Act, judged: &Judged) -> Entry {
    let mut entry = entry_of(observation, Kind::Decision);
    fill(&mut entry, &judged.request, &judged.decision, judged.generation);
    let mut detail = detail(act, &judged.marks);
    if let Some(answer) = &judged.answer {
        detail["approval"] = answer.clone();
    }
    entry.with_detail(&detail)
}

fn decided(core: &Core, observation: &v1::Observation, act: &Act, facts: Facts) -> Entry {
    let subject = core.registry.subject(&observation.agent_id);
    let principal = subject.map(|subject| principal_of(&subject.principal)).unwrap_or_default();
    let marks = facts.marks;
    let request = Request { sources: facts.sources, approver: true, ..Request::new(principal, facts.action) };
    let current = core.policy.current();
    let mut entry = entry_of(observation, Kind::Decision);
    // What has happened already is not turned into a denial for want of an approver: it stays an ask.
    let decision = core.judge(&current.policy, &request, &core.context(entry.at, true));
    fill(&mut entry, &request, &decision, current.number);
    let mut detail = detail(act, &marks);
    if matches!(act, Act::Exec(_)) {
        detail["parent"] = observation.parent_pid.into();
    }
    let objects = if let Act::File(change) = act { change.objects.max(1) } else { 1 };
    if objects + observation.count > 1 {
        detail["count"] = (objects + observation.count).into();
    }
    entry.with_detail(&detail)
}

/// What the request has no place for.
fn detail(act: &Act, marks: &[Mark]) -> serde_json::Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match act {
        Act::Exec(exec) => json!({
            "act": "exec",
            "argv": words(&exec.argv),
            "truncated": exec.truncated,
            "marks": marks,
            "directory": text(&exec.directory),
            "inode": exec.inode,
            "device": exec.device,
            "script": text(&exec.script),
            "name": text(&exec.name),
            "nameless": exec.nameless,
            "sha256": (!exec.sha256.is_empty()).then(|| hex::encode(&exec.sha256)),
        }),
        Act::Connect(connect) => json!({
            "act": "connect",
            "port": connect.port,
            "protocol": connect.protocol,
            "range": connect.range,
            "kernel_rule": connect.rule,
        }),
        Act::File(change) => json!({
            "act": change.operation,
            "path": text(&change.path),
            "other": text(&change.other),
            "inside_worktree": change.inside_worktree,
            "inode": change.inode,
            "device": change.device,
            "existed_before": change.existed_before,
        }),
        Act::Read(read) => json!({
            "act": "open a secret",
            "path": text(&read.path),
            "inside_worktree": read.inside_worktree,
            "hidden": read.hidden,
        }),
        Act::Unix(connect) => json!({"act": "unix connect", "path": text(&connect.path)}),
        Act::Socket(socket) => json!({
            "act": "socket",
            "family": socket.family,
            "kind": socket.kind,
            "protocol": socket.protocol,
        }),
        Act::Listen(listen) => json!({
            "act": "listen",
            "address": address(&listen.address),
            "port": listen.port,
            "protocol": listen.protocol,
        }),
        Act::Exit(exit) => json!({
            "event": "process ended",
            "status": exit.status,
            "duration_ms": milliseconds(exit.duration_ns),
        }),
        Act::Flow(flow) => json!({
            "event": "connection ended",
            "address": address(&flow.address),
            "port": flow.port,
            "protocol": flow.protocol,
            "range": flow.range,
            "sent": flow.sent,
            "received": flow.received,
            "duration_ms": milliseconds(flow.duration_ns),
            "ends": flow.ends,
        }),
        Act::Executable(executable) => json!({
            "event": "executable",
            "inode": executable.inode,
            "device": executable.device,
            "size": executable.size,
            "sha256": (!executable.sha256.is_empty()).then(|| hex::encode(&executable.sha256)),
            "note": executable.note,
        }),
        _ => serde_json::Value::Null,
    }
}

/// What is worth knowing about acts that were judged before.
fn ended(core: &Core, observation: &v1::Observation, act: &Act) -> Entry {
    let mut detail = detail(act, &[]);
    if observation.parent_pid != 0 {
        detail["parent"] = observation.parent_pid.into();
    }
    lifecycle(core, observation, None).with_detail(&detail)
}

/// As people write it.
fn address(bytes: &[u8]) -> String {
    <[u8; 16]>::try_from(bytes).map_or_else(
        |_| String::new(),
        |octets| {
            let address = std::net::Ipv6Addr::from(octets);
            address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string())
        },
    )
}

fn milliseconds(nanoseconds: u64) -> f64 {
    (nanoseconds / 1000) as f64 / 1e3
}

fn lost(observation: &v1::Observation, loss: &v1::Loss) -> Entry {
    let detail = json!({
        "class": loss.class,
        "count": loss.count,
        "first_seq": loss.first_seq,
        "last_seq": loss.last_seq,
    });
    entry_of(observation, Kind::Loss).with_detail(&detail)
}

fn lifecycle(core: &Core, observation: &v1::Observation, pid: Option<u32>) -> Entry {
    let mut entry = entry_of(observation, Kind::Daemon);
    let subject = core.registry.subject(&observation.agent_id);
    entry.principal = subject.and_then(|subject| to_raw_value(&principal_of(&subject.principal)).ok());
    entry.pid = pid.or(entry.pid);
    entry
}

fn entry_of(observation: &v1::Observation, kind: Kind) -> Entry {
    let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    // A word that this version does not know says nothing about what happened.
    let mut entry = Entry::new(kind, Effect::parse(&observation.effect).unwrap_or(Effect::None));
    if let Ok(at) = jiff::Timestamp::from_nanosecond(i128::from(observation.time_ns)) {
        entry.at = at;
    }
    entry.agent_id = filled(&observation.agent_id);
    entry.mechanism = filled(&observation.mechanism);
    entry.strength = filled(&observation.strength);
    entry.pid = (observation.pid != 0).then_some(observation.pid);
    entry.exe = (!observation.exe.is_empty()).then(|| String::from_utf8_lossy(&observation.exe).into_owned());
    entry.cgroup = (observation.cgroup != 0).then_some(observation.cgroup);
    entry.latency_us = (observation.latency_us != 0).then_some(observation.latency_us);
    entry
}

fn words(arguments: &[Vec<u8>]) -> Vec<String> {
    arguments.iter().map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

fn path_of(bytes: &[u8]) -> std::path::PathBuf {
    Path::new(OsStr::from_bytes(bytes)).to_owned()
}
