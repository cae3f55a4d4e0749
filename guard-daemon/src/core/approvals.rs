//! Acts that wait for a yes: judged when they are asked, shown to whoever watches, answered once.
//!
//! What was judged is kept until the act is over, and is what its record says: a policy that changes meanwhile changes nothing
//! for an act that somebody looks at. The agent's shim asks again every second, so an act whose shim is silent is gone.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use guard_policy::{Decision, Outcome, Request as Asked, facts::Mark};
use guard_proto::v1::{self, approvals_server, verdict::Answer};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status};

use super::{
    Core,
    peer::{Peer, Role},
    record, rules,
    services::{peer_of, refusal},
};
use crate::audit::{Effect, Entry, Kind};

/// An act of which its shim says nothing for so long waits no more.
const SILENCE: Duration = Duration::from_secs(4);
/// Different acts of one agent that may wait at once; more of them nobody reads.
const OF_ONE_AGENT: usize = 32;
/// Judged acts whose end is awaited, before old ones are looked for.
const KEPT: usize = 4096;
/// What is older then is no act that anybody will tell of.
const OLD: Duration = Duration::from_secs(600);
/// How long a shim need not ask about what policy allows whatever it touches; a reload reaches it this late.
const FREE_MS: u32 = 500;
/// How long a yes is kept that is given with one key, seconds.
const KEPT_FOR: i64 = 4 * 3600;
/// Events that a slow watcher may be behind.
const BEHIND: usize = 256;

/// One act of one agent.
type Act = (String, u64);

/// The queue.
pub struct Approvals {
    inner: Mutex<Inner>,
    events: broadcast::Sender<Arc<Value>>,
}

#[derive(Default)]
struct Inner {
    judged: HashMap<Act, Judged>,
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    watchers: usize,
}

/// What was decided about an act when it was asked.
#[derive(Debug)]
pub struct Judged {
    pub request: Asked,
    pub decision: Decision,
    pub marks: Vec<Mark>,
    pub generation: u64,
    /// What a person said, and who, or that nobody did; absent where policy decided alone.
    pub answer: Option<Value>,
    verdict: Option<Answer>,
    at: Instant,
}

/// Acts that one answer settles: the same act tried again is no second question.
struct Waiting {
    key: String,
    acts: Vec<Act>,
    shown: Value,
    since: Instant,
    heard: Instant,
}

/// Nothing waits under this number.
#[derive(Debug, thiserror::Error)]
#[error(
    "nothing waits under the number {0}; it was answered, gave up, or never was: `guardctl approvals list`"
)]
pub struct NotWaiting(u64);

impl Default for Approvals {
    fn default() -> Self {
        Self { inner: Mutex::default(), events: broadcast::channel(BEHIND).0 }
    }
}

impl Approvals {
    /// What is to be said to the shim about an act that it asks about.
    pub fn asked(&self, core: &Core, ask: v1::Ask) -> Option<v1::Verdict> {
        let observation = ask.observation?;
        let act = (observation.agent_id.clone(), ask.id);
        if ask.cancelled {
            self.leave(&act);
            return None;
        }
        let (verdict, free) = match self.known(core, &act) {
            Some(known) => (known, false),
            None => self.judge(core, &act, observation),
        };
        let free_ms = if free { FREE_MS } else { 0 };
        Some(v1::Verdict { agent_id: act.0, id: act.1, answer: verdict.into(), free_ms })
    }

    /// What an act came to, once it is over.
    pub fn take(&self, agent_id: &str, ask: u64) -> Option<Judged> {
        self.lock().judged.remove(&(agent_id.to_owned(), ask))
    }

    /// Settles what waits under a number.
    ///
    /// # Errors
    /// [`NotWaiting`]
    pub fn answer(&self, core: &Core, id: u64, answer: &str, by: &Value) -> Result<(), NotWaiting> {
        let acts = {
            let mut inner = self.lock();
            let waiting = inner.waiting.remove(&id).ok_or(NotWaiting(id))?;
            let verdict = if answer == "yes" { Answer::Allow } else { Answer::Refuse };
            for act in &waiting.acts {
                if let Some(judged) = inner.judged.get_mut(act) {
                    judged.verdict = Some(verdict);
                    judged.answer = Some(json!({"id": id, "answer": answer, "by": by}));
                }
            }
            let detail = json!({
                "event": "answered", "id": id, "answer": answer, "by": by,
                "waited_ms": waiting.since.elapsed().as_millis() as u64,
            });
            let mut entry = Entry::new(Kind::Approval, Effect::Done).with_detail(&detail);
            entry.agent_id = waiting.acts.first().map(|(agent, _)| agent.clone());
            // Before anything happens by it.
            core.write(entry);
            waiting.acts.into_iter().map(|act| (act, verdict)).collect::<Vec<_>>()
        };
        for ((agent_id, ask), verdict) in acts {
            core.line.verdict(v1::Verdict { agent_id, id: ask, answer: verdict.into(), free_ms: 0 });
        }
        self.tell(json!({"event": "ended", "id": id, "answer": answer, "by": by}));
        Ok(())
    }

    /// What waits, the oldest first.
    pub fn list(&self) -> Vec<Value> {
        let mut inner = self.lock();
        inner.forget_the_silent();
        inner.waiting.values().map(|waiting| waiting.shown.clone()).collect()
    }

    /// What was asked for, for the rule that a kept yes writes.
    fn shown(&self, id: u64) -> Result<Value, NotWaiting> {
        self.lock().waiting.get(&id).map(|waiting| waiting.shown.clone()).ok_or(NotWaiting(id))
    }

    fn known(&self, core: &Core, act: &Act) -> Option<Answer> {
        let mut inner = self.lock();
        let judged = inner.judged.get(act)?;
        if let Some(verdict) = judged.verdict {
            return Some(verdict);
        }
        let found = inner.waiting.iter_mut().find(|(_, waiting)| waiting.acts.contains(act));
        let Some((id, waiting)) = found else { return Some(Answer::Refuse) };
        let id = *id;
        waiting.heard = Instant::now();
        if waiting.since.elapsed() < timeout(core) {
            return Some(Answer::Wait);
        }
        drop(inner);
        // Somebody may answer at this very moment.
        let _ = self.answer(core, id, "timeout", &Value::Null);
        self.lock().judged.get(act).and_then(|judged| judged.verdict)
    }

    /// The answer, and whether acts like this one get the same whatever they touch.
    fn judge(&self, core: &Core, act: &Act, observation: v1::Observation) -> (Answer, bool) {
        let approver = self.lock().watchers > 0;
        let Some((judged, shown)) = self.decide(core, &observation, approver) else {
            return (Answer::Refuse, false);
        };
        let free = judged.decision.outcome == Outcome::Allow && is_free(core, &judged);
        (self.enter(core, act, judged, shown), free)
    }

    fn enter(&self, core: &Core, act: &Act, mut judged: Judged, shown: Value) -> Answer {
        let mut inner = self.lock();
        if inner.judged.len() >= KEPT {
            inner.judged.retain(|_, judged| judged.verdict.is_none() || judged.at.elapsed() < OLD);
        }
        match judged.decision.outcome {
            Outcome::Allow | Outcome::AllowWithRedaction => judged.verdict = Some(Answer::Allow),
            Outcome::Deny => judged.verdict = Some(Answer::Refuse),
            Outcome::DeferForApproval => {}
        }
        if let Some(verdict) = judged.verdict {
            inner.judged.insert(act.clone(), judged);
            return verdict;
        }
        let rules: Vec<_> = judged.decision.asks.iter().map(|ask| ask.rule.to_string()).collect();
        let key = json!([judged.request.principal, rules, judged.request.action]).to_string();
        inner.forget_the_silent();
        if let Some(waiting) = inner.waiting.values_mut().find(|waiting| waiting.key == key) {
            waiting.acts.push(act.clone());
            inner.judged.insert(act.clone(), judged);
            return Answer::Wait;
        }
        let others = inner.waiting.values().filter(|waiting| waiting.acts.iter().any(|(id, _)| *id == act.0));
        if others.count() >= OF_ONE_AGENT {
            judged.verdict = Some(Answer::Refuse);
            judged.answer =
                Some(json!({"answer": "no", "by": null, "why": "too many acts of this agent wait"}));
            inner.judged.insert(act.clone(), judged);
            return Answer::Refuse;
        }
        inner.next += 1;
        let id = inner.next;
        let mut shown = shown;
        shown["id"] = id.into();
        let now = Instant::now();
        let waiting = Waiting { key, acts: vec![act.clone()], shown: shown.clone(), since: now, heard: now };
        inner.waiting.insert(id, waiting);
        inner.judged.insert(act.clone(), judged);
        drop(inner);
        let mut entry = Entry::new(Kind::Approval, Effect::None)
            .with_detail(&json!({"event": "asked", "id": id, "act": shown["act"]}));
        entry.agent_id = Some(act.0.clone());
        core.write(entry);
        self.tell(json!({"event": "asked", "waiting": shown}));
        Answer::Wait
    }

    fn decide(&self, core: &Core, observation: &v1::Observation, approver: bool) -> Option<(Judged, Value)> {
        let (mut request, marks, act) = record::asked(core, observation)?;
        request.approver = approver;
        let current = core.policy.current();
        let now = jiff::Timestamp::now();
        let decision = core.judge(&current.policy, &request, &core.context(now, approver));
        let expires = now + jiff::SignedDuration::try_from(timeout(core)).unwrap_or_default();
        let shown = json!({
            "agent_id": observation.agent_id,
            "principal": request.principal,
            "request": request,
            "asks": decision.asks,
            "act": act,
            "pid": observation.pid,
            "exe": String::from_utf8_lossy(&observation.exe),
            "remember": remembered(&request, &decision, now),
            "since": now.to_string(),
            "expires": expires.to_string(),
        });
        let judged = Judged {
            request,
            decision,
            marks,
            generation: current.number,
            answer: None,
            verdict: None,
            at: Instant::now(),
        };
        Some((judged, shown))
    }

    /// The caller of an act waits no more.
    fn leave(&self, act: &Act) {
        self.give_up(|other| other == act);
    }

    /// An agent has ended: nothing of it waits, and nothing of it will be told.
    pub fn ended(&self, agent_id: &str) {
        self.give_up(|(agent, _)| agent == agent_id);
        self.lock().judged.retain(|(agent, _), _| agent != agent_id);
    }

    fn give_up(&self, gone: impl Fn(&Act) -> bool) {
        let mut over = Vec::new();
        self.lock().waiting.retain(|id, waiting| {
            waiting.acts.retain(|act| !gone(act));
            if waiting.acts.is_empty() {
                over.push(*id);
            }
            !waiting.acts.is_empty()
        });
        for id in over {
            self.tell(json!({"event": "ended", "id": id, "answer": "cancelled", "by": null}));
        }
    }

    fn tell(&self, event: Value) {
        // Nobody may be watching.
        let _ = self.events.send(Arc::new(event));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether policy would allow the deletion of anything: a request that does not say what it touches is allowed only where
/// no rule about paths could say otherwise. What is counted is asked each time.
fn is_free(core: &Core, judged: &Judged) -> bool {
    if judged.request.action.classes != [guard_common::ActionClass::FileDelete]
        || !judged.decision.budget.is_empty()
    {
        return false;
    }
    let mut any = judged.request.clone();
    any.action.paths = None;
    let current = core.policy.current();
    let context = core.context(jiff::Timestamp::now(), any.approver);
    let decision = core.sessions().peek(&current.policy, &any, &context);
    current.number == judged.generation && decision.outcome == Outcome::Allow && decision.budget.is_empty()
}

/// What a kept yes would say, a sentence a class, and where it would hold; null where it cannot be kept, or not as narrowly.
fn remembered(request: &Asked, decision: &Decision, now: jiff::Timestamp) -> Value {
    let Some(agent) = &request.principal.agent else { return Value::Null };
    let scope = format!("agent:{agent}");
    let time = jiff::SignedDuration::from_secs(KEPT_FOR);
    let rule = |class: &str| {
        let class = class.parse().ok()?;
        let rule =
            guard_policy::approval::remember(&request.action, class, &scope, "kept", now, time).ok()?;
        Some(rules::said(&rule))
    };
    let sentences: Option<Vec<String>> = decision.asks.iter().map(|ask| rule(ask.resource_class)).collect();
    sentences
        .map_or(Value::Null, |sentences| json!({"scope": scope, "seconds": KEPT_FOR, "sentences": sentences}))
}

/// How long a person has.
fn timeout(core: &Core) -> Duration {
    Duration::from_secs(core.settings.approvals.timeout_s.into())
}

impl Inner {
    fn forget_the_silent(&mut self) {
        self.waiting.retain(|_, waiting| waiting.heard.elapsed() < SILENCE);
    }
}

/// For people who may approve.
pub struct ApprovalsService(pub Arc<Core>);

/// Somebody who can answer, for as long as this lives.
struct Watcher(Arc<Core>);

impl Watcher {
    fn new(core: &Arc<Core>) -> Self {
        core.approvals.lock().watchers += 1;
        Self(Arc::clone(core))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.approvals.lock().watchers -= 1;
    }
}

fn gone(error: &NotWaiting) -> Status {
    refusal(Code::NotFound, "not_waiting", error.to_string())
}

impl ApprovalsService {
    fn approver<T>(&self, request: &Request<T>) -> Result<Peer, Status> {
        let peer = peer_of(request)?;
        peer.require(Role::Approve, &self.0.settings.permissions)?;
        Ok(peer)
    }
}

#[tonic::async_trait]
impl approvals_server::Approvals for ApprovalsService {
    async fn list(
        &self,
        request: Request<v1::ListApprovalsRequest>,
    ) -> Result<Response<v1::ApprovalsResponse>, Status> {
        self.approver(&request)?;
        let json = Value::from(self.0.approvals.list()).to_string().into_bytes();
        Ok(Response::new(v1::ApprovalsResponse { json }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::ApprovalEvent, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<v1::WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.approver(&request)?;
        // Before the list, so that nothing falls between.
        let mut events = self.0.approvals.events.subscribe();
        let watcher = Watcher::new(&self.0);
        let now = self.0.approvals.list();
        let (sender, receiver) = mpsc::channel(BEHIND);
        tokio::spawn(async move {
            let event = |value: &Value| Ok(v1::ApprovalEvent { json: value.to_string().into_bytes() });
            // From here on the caller counts.
            if sender.send(event(&json!({"event": "watching"}))).await.is_err() {
                return;
            }
            for waiting in &now {
                if sender.send(event(&json!({"event": "asked", "waiting": waiting}))).await.is_err() {
                    return;
                }
            }
            loop {
                let next = tokio::select! {
                    next = events.recv() => next,
                    () = sender.closed() => break,
                };
                let sent = match next {
                    Ok(value) => sender.send(event(&value)).await,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        let behind =
                            Status::data_loss("too slow to follow; watch again to see all that waits");
                        sender.send(Err(behind)).await
                    }
                    Err(broadcast::error::RecvError::Closed) => break,
                };
                if sent.is_err() {
                    break;
                }
            }
            drop(watcher);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn answer(
        &self,
        request: Request<v1::AnswerRequest>,
    ) -> Result<Response<v1::AnswerResponse>, Status> {
        let peer = self.approver(&request)?;
        let asked = request.into_inner();
        let shown = self.0.approvals.shown(asked.id).map_err(|error| gone(&error))?;
        let mut remembered = Vec::new();
        if asked.remember_seconds > 0 {
            if !asked.yes {
                let message = "a no is not kept; write a rule that denies";
                return Err(refusal(Code::InvalidArgument, "not_remembered", message));
            }
            let classes = shown["asks"].as_array().into_iter().flatten();
            let grants = classes.filter_map(|ask| ask["resource_class"].as_str()).map(|class| v1::Grant {
                request: shown["request"].to_string().into_bytes(),
                class: class.to_owned(),
                scope: asked.scope.clone(),
                ttl_seconds: asked.remember_seconds,
                preview: false,
            });
            let rules = rules::RulesService(Arc::clone(&self.0));
            remembered = rules.remember(&peer, grants.collect()).await?;
        }
        let by = json!({"name": super::name_of(peer.uid), "uid": peer.uid, "pid": peer.pid});
        let answer = if asked.yes { "yes" } else { "no" };
        self.0.approvals.answer(&self.0, asked.id, answer, &by).map_err(|error| gone(&error))?;
        Ok(Response::new(v1::AnswerResponse { remembered }))
    }
}
