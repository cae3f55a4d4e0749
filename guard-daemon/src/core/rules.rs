//! Rules, standing approvals and the autonomy dial, changed while the daemon runs. Every change is a record of who made
//! it, from where, and what was there before and after.

use std::sync::Arc;

use guard_policy::{
    Policy, Request as Asked, approval,
    policy::{Autonomy, UnknownAutonomy},
    review::sentence,
};
use guard_proto::v1::{self, change_rules_request::Change, rules_server};
use serde_json::{Value, json};
use tonic::{Code, Request, Response, Status};

use super::{
    Core,
    peer::{Peer, Role},
    policy::PolicyError,
    services::{peer_of, refusal},
};
use crate::audit::{Effect, Entry, Kind};

/// The service for people; agents have no part in it.
pub struct RulesService(pub Arc<Core>);

/// What a change did.
struct Done {
    what: &'static str,
    before: Value,
    after: Value,
}

fn invalid(stable: &'static str, message: impl Into<String>) -> Status {
    refusal(Code::InvalidArgument, stable, message)
}

fn refused(error: &PolicyError) -> Status {
    refusal(Code::FailedPrecondition, "policy_invalid", error.to_string())
}

/// A rule as a policy file has it, read by the strict reader before anything else looks at it.
fn read(bytes: &[u8]) -> Result<(String, Value), Status> {
    let file = [b"{\"rules\": [", bytes, b"]}"].concat();
    let policy = Policy::load(Some(("rule", &file)), None).map_err(|faults| {
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        invalid("policy_invalid", lines.join("\n"))
    })?;
    let [rule] = policy.rules() else {
        return Err(invalid("policy_invalid", "one rule is added at a time"));
    };
    let value =
        serde_json::from_slice(bytes).map_err(|error| invalid("malformed_json", error.to_string()))?;
    Ok((rule.id.to_string(), value))
}

/// The sentence of a rule.
pub fn said(rule: &Value) -> String {
    let file = json!({"rules": [rule]}).to_string();
    let policy = Policy::load(Some(("rule", file.as_bytes())), None);
    policy.ok().and_then(|policy| policy.rules().first().map(sentence::rule)).unwrap_or_default()
}

impl RulesService {
    /// Writes, records and brings into force what a yes that is kept says, all of it or nothing; returns its sentences.
    pub async fn remember(&self, peer: &Peer, grants: Vec<v1::Grant>) -> Result<Vec<String>, Status> {
        for grant in &grants {
            self.apply(peer, Change::Grant(v1::Grant { preview: true, ..grant.clone() }))?;
        }
        let mut sentences = Vec::with_capacity(grants.len());
        for grant in grants {
            let (done, generation) = self.apply(peer, Change::Grant(grant))?;
            self.made(peer, &done, generation).await;
            sentences.push(said(&done.after));
        }
        Ok(sentences)
    }

    async fn made(&self, peer: &Peer, done: &Done, generation: u64) {
        let kind = if done.what.starts_with("approval") { Kind::Approval } else { Kind::Policy };
        let detail = json!({
            "event": done.what, "by": super::name_of(peer.uid), "by_uid": peer.uid, "by_pid": peer.pid,
            "before": done.before, "after": done.after, "generation": generation,
        });
        self.0.write(Entry::new(kind, Effect::Done).with_detail(&detail));
        self.0.line.snapshot(self.0.snapshot()).await;
    }

    fn apply(&self, peer: &Peer, change: Change) -> Result<(Done, u64), Status> {
        let permissions = &self.0.settings.permissions;
        let by = super::name_of(peer.uid);
        let store = &self.0.policy;
        match change {
            Change::Add(bytes) => {
                peer.require(Role::Operate, permissions)?;
                let (id, rule) = read(&bytes)?;
                let added = store.change(|database| Ok(database.add_rule(&id, &rule, &by)?));
                let ((), generation) = added.map_err(|error| refused(&error))?;
                Ok((Done { what: "rule added", before: Value::Null, after: rule }, generation.number))
            }
            Change::Remove(id) => {
                let found = store.database().rule(&id).map_err(|error| refused(&error.into()))?;
                let Some(rule) = found else {
                    let message =
                        format!("the store has no rule `{id}`; rules of files are changed in their files");
                    return Err(refusal(Code::NotFound, "no_such_rule", message));
                };
                let remembered = rule["provenance"] == "remembered";
                if !(remembered && peer.holds(Role::Approve, permissions)) {
                    peer.require(Role::Operate, permissions)?;
                }
                let removed = store.change(|database| Ok(database.remove_rule(&id)?));
                let (_, generation) = removed.map_err(|error| refused(&error))?;
                let what = if remembered { "approval revoked" } else { "rule removed" };
                Ok((Done { what, before: rule, after: Value::Null }, generation.number))
            }
            Change::Autonomy(v1::SetAutonomy { space, value }) => {
                peer.require(Role::Operate, permissions)?;
                let value: Autonomy = value
                    .parse()
                    .map_err(|error: UnknownAutonomy| invalid("out_of_range", error.to_string()))?;
                if space.is_empty() {
                    return Err(invalid("out_of_range", "the dial belongs to a space; name it"));
                }
                let set = store.change(|database| Ok(database.set_autonomy(&space, value.as_str(), &by)?));
                let (before, generation) = set.map_err(|error| refused(&error))?;
                let after = json!({"space": space, "autonomy": value.as_str()});
                let before = json!({"space": space, "autonomy": before});
                Ok((Done { what: "autonomy set", before, after }, generation.number))
            }
            Change::Grant(grant) => self.grant(peer, &by, grant),
        }
    }

    fn grant(&self, peer: &Peer, by: &str, grant: v1::Grant) -> Result<(Done, u64), Status> {
        peer.require(Role::Approve, &self.0.settings.permissions)?;
        let mut asked =
            Asked::parse(&grant.request).map_err(|fault| invalid(fault.code.as_str(), fault.message))?;
        asked.derive();
        let class = grant.class.parse().map_err(|error| invalid("unknown_class", format!("{error}")))?;
        if !["space:", "agent:", "workspace:"].iter().any(|kind| grant.scope.starts_with(kind)) {
            return Err(invalid(
                "out_of_range",
                "an approval holds in a scope: space:ID, agent:ID or workspace:ID",
            ));
        }
        let now = jiff::Timestamp::now();
        let ttl = i64::try_from(grant.ttl_seconds).unwrap_or(i64::MAX);
        let id = format!("remembered-{}", now.as_nanosecond());
        let rule = approval::remember(
            &asked.action,
            class,
            &grant.scope,
            &id,
            now,
            jiff::SignedDuration::from_secs(ttl),
        )
        .map_err(|error| invalid("not_remembered", error.to_string()))?;
        let done = Done { what: "approval granted", before: Value::Null, after: rule };
        if grant.preview {
            return Ok((done, self.0.policy.current().number));
        }
        let added = self.0.policy.change(|database| Ok(database.add_rule(&id, &done.after, by)?));
        let ((), generation) = added.map_err(|error| refused(&error))?;
        Ok((done, generation.number))
    }
}

#[tonic::async_trait]
impl rules_server::Rules for RulesService {
    async fn list(
        &self,
        request: Request<v1::ListRulesRequest>,
    ) -> Result<Response<v1::RulesResponse>, Status> {
        peer_of(&request)?.require(Role::Run, &self.0.settings.permissions)?;
        let generation = self.0.policy.current().number;
        let (rules, document) = {
            let database = self.0.policy.database();
            let failed = |error: super::database::DatabaseError| refused(&error.into());
            (database.rules().map_err(failed)?, database.document().map_err(failed)?)
        };
        let rules: Vec<Value> = rules
            .into_iter()
            .map(|(rule, origin)| {
                let sentence = said(&rule);
                json!({"rule": rule, "sentence": sentence, "by": origin["by"], "at": origin["at"]})
            })
            .collect();
        let json = json!({"rules": rules, "autonomy": document["autonomy"]}).to_string().into_bytes();
        Ok(Response::new(v1::RulesResponse { json, generation }))
    }

    async fn change(
        &self,
        request: Request<v1::ChangeRulesRequest>,
    ) -> Result<Response<v1::ChangeRulesResponse>, Status> {
        let peer = peer_of(&request)?;
        let Some(change) = request.into_inner().change else {
            return Err(invalid("out_of_range", "the change is empty"));
        };
        let preview = matches!(&change, Change::Grant(grant) if grant.preview);
        let (done, generation) = self.apply(&peer, change)?;
        if !preview {
            self.made(&peer, &done, generation).await;
        }
        let rule = if done.after.is_null() { &done.before } else { &done.after };
        let json = json!({"before": done.before, "after": done.after, "sentence": said(rule)});
        let json = json.to_string().into_bytes();
        Ok(Response::new(v1::ChangeRulesResponse { generation, json }))
    }
}
