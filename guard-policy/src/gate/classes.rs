//! The gate of the action classes: rules by class and by command, the autonomy dial, the managed file and the
//! command net of the mode, in this order.

use guard_common::Effect;

use super::Finding;
use super::chain::{Answer, Asked, Question, Tier, Trail, note, resolve};
use crate::decide::Context;
use crate::decision::{Code, Matched, Outcome, Refusal, Status, Text};
use crate::policy::{Autonomy, Level, Policy, View};
use crate::request::Request;
use crate::session::Usage;
use crate::value::command_has_prefix;

pub(crate) fn judge(
    policy: &Policy,
    request: &Request,
    context: &Context,
    usage: &Usage,
    dial: Autonomy,
) -> Finding {
    let readings: Vec<View<'_>> =
        (0..View::readings(request)).map(|index| View::reading(request, index)).collect();
    judge_readings(&Asked { policy, request, now: context.now(), usage, views: &readings }, dial)
}

/// Judges a request whose hosts are taken as they are, without the addresses hidden in them: the kernel unfolds
/// an address itself and looks up each.
pub(crate) fn judge_as_is(policy: &Policy, request: &Request, context: &Context) -> Finding {
    let (usage, views) = (Usage::default(), [View::plain(request)]);
    let asked = Asked { policy, request, now: context.now(), usage: &usage, views: &views };
    judge_readings(&asked, policy.autonomy(&request.principal))
}

fn judge_readings(asked: &Asked<'_>, dial: Autonomy) -> Finding {
    let request = asked.request;
    let action = &request.action;
    let mut finding = Finding::default();
    if action.classes.is_empty() && action.commands.as_ref().is_none_or(Vec::is_empty) {
        return finding;
    }
    finding.outcome = Some(Outcome::Allow);
    let mut trail = Trail::default();
    if dial == Autonomy::ProposeOnly
        && let Some(class) = action.classes.first()
    {
        let question = Question::Class(*class);
        note(&mut trail.matched, dial_matched(request, dial, question, Effect::Deny));
        add(&mut finding, question, propose_only(request, question, class.as_str()));
    }
    let classes = action.classes.iter().map(|class| Question::Class(*class));
    let commands = action.commands.iter().flatten().map(|command| Question::Command(command));
    for question in classes.chain(commands) {
        if let Some(mut answer) = resolve(asked, Tier::Policy, question, &mut trail) {
            if dial == Autonomy::ActFreely && answer.effect == Some(Effect::Prompt) && !answer.from_deny {
                answer = Answer {
                    effect: Some(Effect::Allow),
                    rule: Text::Static(dial.rule()),
                    ..Answer::default()
                };
                note(&mut trail.matched, dial_matched(request, dial, question, Effect::Allow));
            }
            lift(&mut finding, request, &mut answer);
            add(&mut finding, question, answer);
        }
        if let Some(answer) = resolve(asked, Tier::Managed, question, &mut trail) {
            add(&mut finding, question, answer);
        }
    }
    for command in action.commands.iter().flatten() {
        if let Some(denied) = mode_net(asked.policy, request, command) {
            finding.outcome = Some(Outcome::Deny);
            finding.denied = finding.denied.or(Some(denied));
        }
    }
    if let Some(rule) = trail.overflow {
        finding.outcome = Some(Outcome::Deny);
        finding.denied = Some(Refusal {
            rule: Text::Static("engine:overflow"),
            resource_class: "request",
            reason: format!("what rule `{rule}` has counted and what this asks for cannot be added"),
            code: Code::EngineError,
        });
    }
    finding.matched = trail.matched;
    finding.charges = trail.charges;
    finding
}

/// `C-092`: a soft denial is lifted for this request by somebody who says who they are and why. Whether they may is
/// known to whoever took the request; it reaches the engine only if they may.
fn lift(finding: &mut Finding, request: &Request, answer: &mut Answer) {
    if !answer.soft {
        return;
    }
    match &request.overridden {
        Some(overridden) if overridden.is_complete() => {
            finding.overridden.push(answer.rule.clone());
            *answer = Answer { effect: Some(Effect::Allow), rule: answer.rule.clone(), ..Answer::default() };
        }
        given => {
            let hint = match given {
                Some(_) => "; an override names who lifts it and the justification",
                None => "; whoever holds the override permission can lift it with a justification",
            };
            answer.refusal.iter_mut().for_each(|refusal| refusal.reason.push_str(hint));
        }
    }
}

fn add(finding: &mut Finding, question: Question<'_>, answer: Answer) {
    let Some(effect) = answer.effect else { return };
    finding.outcome = finding.outcome.max(Some(effect.into()));
    match (effect, answer.refusal) {
        // One rule that is asked about twice is one question; the run puts them together.
        (Effect::Prompt, Some(refusal)) => finding.asks.push(refusal),
        (Effect::Deny, Some(refusal)) => finding.denied = finding.denied.take().or(Some(refusal)),
        _ if question.class().is_some() => {
            finding.allowed = finding.allowed.take().or(Some(answer.rule));
        }
        _ => {}
    }
}

fn propose_only(request: &Request, question: Question<'_>, class: &str) -> Answer {
    let space = request.principal.space.as_deref().unwrap_or_default();
    let rule = Text::Static(Autonomy::ProposeOnly.rule());
    let reason = format!("space:{space}: agents only propose here; {class} is an act");
    Answer {
        effect: Some(Effect::Deny),
        refusal: Some(question.refusal(rule.clone(), reason, Code::Autonomy)),
        rule,
        from_deny: true,
        soft: false,
    }
}

fn mode_net(policy: &Policy, request: &Request, command: &str) -> Option<Refusal> {
    let mode = request.principal.mode.as_ref()?;
    let prefixes = policy.parts().nets.get(mode)?;
    let prefix = prefixes.iter().find(|prefix| command_has_prefix(command, prefix))?;
    let reason = format!("mode:{mode}: commands that start with `{prefix}` are refused");
    Some(Question::Command(command).refusal(format!("net:{mode}").into(), reason, Code::ModeNet))
}

fn dial_matched(request: &Request, dial: Autonomy, question: Question<'_>, effect: Effect) -> Matched {
    let space = request.principal.space.as_deref().unwrap_or_default();
    Matched {
        rule: Text::Static(dial.rule()),
        scope: format!("space:{space}").into(),
        class: question.class(),
        effect,
        level: Level::Strict.as_str(),
        constraint: None,
        advisory: false,
        status: Status::Decided,
    }
}
