//! Rules, approvals and the dial that people change while the daemon runs, and the same answers over gRPC as offline.

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, output, own_file},
    skip_host,
};
use serde_json::{Value, json};

const POLICY: &str = r#"{"version": 1, "rules": [
    {"id": "no-push-main", "scope": "workspace:acme", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}},
    {"id": "few", "class": "fileDelete", "effect": "allow", "constraints": {"max_count": 5}},
    {"id": "soft", "class": "vendorSyncWrite", "effect": "deny", "level": "soft"}],
  "modes": {"review": {"deny_commands": ["git push"]}}}"#;

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn guardctl(host: &Host, arguments: &[&str]) -> Result<Output> {
    output(&mut host.guardctl(arguments))
}

fn eval(mut command: Command, lines: &str) -> Result<Vec<Value>> {
    command.env_remove("GUARD_SOCKET").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("a pipe")?.write_all(lines.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    anyhow::ensure!(!text.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
}

/// What the daemon says of one request.
fn rule(host: &Host, request: &Value) -> Result<String> {
    let answers = eval(host.guardctl(&["eval"]), &format!("{request}\n"))?;
    Ok(answers[0]["rule"].as_str().unwrap_or_default().to_owned())
}

/// C-002, C-143: a line gets the same decision offline and over gRPC; only the core's own word on approvers counts there.
#[test]
fn eval_over_grpc_is_eval_offline() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::with_policy(POLICY)?;
    let file = host.path("same.json");
    fs::write(&file, POLICY)?;
    let who = json!({"session": "s", "workspace": "acme", "mode": "review"});
    let lines = [
        json!({"id": "1", "principal": who, "action": {"classes": ["gitPush"], "refs": ["main"]}}),
        json!({"id": "2", "principal": who, "action": {"commands": ["git push origin x"]}}),
        json!({"id": "3", "principal": who, "action": {"classes": ["fileDelete"], "count": 3}}),
        json!({"id": "4", "principal": who, "action": {"classes": ["fileDelete"], "count": 3}}),
        json!({"receipt": "3", "session": "s", "ran": false}),
        json!({"id": "5", "principal": who, "action": {"classes": ["fileDelete"], "count": 3}}),
        json!({"id": "6", "action": {"clases": []}}),
        json!({"id": "7", "action": {"hosts": ["169.254.169.254"]}}),
        json!({"id": "8", "delegate": {"to": "e", "chain": ["a", "b", "c", "d"]}}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut command = Command::new(guard_tests::programs().join("guardctl"));
    command.args(["eval", "--policy"]).arg(&file);
    let offline = eval(command, &lines)?;
    let online = eval(host.guardctl(&["eval"]), &lines)?;
    assert_eq!(online, offline);
    assert_eq!((&online[0]["rule"], &online[4]["settled"]), (&json!("no-push-main"), &json!(true)));
    Ok(())
}

/// C-084, C-085, C-092, C-093, C-112: rules, approvals, dial and overrides change at once, each change is one record, and they are
/// there after a restart.
#[test]
fn changes_are_in_force_recorded_and_kept() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::with_policy(POLICY)?;
    let push = |reference: &str| json!({"principal": {"agent": "a", "space": "x"}, "action": {"classes": ["gitPush"], "refs": [reference]}});
    assert_eq!(rule(&host, &push("feature/x"))?, "builtin:gitPush");
    let granted = guardctl(
        &host,
        &[
            "--json",
            "approvals",
            "grant",
            "--class",
            "gitPush",
            "--ref",
            "feature/login",
            "--scope",
            "agent:a",
            "--ttl",
            "4h",
        ],
    )?;
    assert!(granted.status.success(), "{}", told(&granted));
    let id = serde_json::from_slice::<Value>(&granted.stdout)?["after"]["id"]
        .as_str()
        .context("an id")?
        .to_owned();
    assert_eq!(rule(&host, &push("feature/x"))?, id);
    assert_eq!(rule(&host, &push("main"))?, "builtin:gitPush", "an approval is as narrow as it was shown");
    let record = host.wait_for_record(|record| record["kind"] == "approval")?;
    assert_eq!((&record["detail"]["before"], &record["detail"]["after"]["id"]), (&Value::Null, &json!(id)));

    let file = host.path("rule.json");
    own_file(
        &file,
        r#"{"id": "ask", "scope": "space:x", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}}"#,
    )?;
    let added = guardctl(&host, &["rules", "add", &file.display().to_string()])?;
    assert!(added.status.success(), "{}", told(&added));
    assert_eq!(rule(&host, &push("main"))?, "ask");
    for bad in [
        r#"{"id": "x", "class": "gitPush", "class": "gitCommit", "effect": "deny"}"#,
        r#"{"id": "no-push-main", "class": "gitPush", "effect": "deny"}"#,
    ] {
        own_file(&file, bad)?;
        let refused = guardctl(&host, &["rules", "add", &file.display().to_string()])?;
        assert_eq!(refused.status.code(), Some(1), "{}", told(&refused));
    }

    let wrong = guardctl(&host, &["autonomy", "set", "x", "act-freely"])?;
    assert_eq!(wrong.status.code(), Some(1), "{}", told(&wrong));
    assert!(guardctl(&host, &["autonomy", "set", "x", "proposeOnly"])?.status.success());
    assert_eq!(rule(&host, &push("feature/x"))?, "autonomy:proposeOnly");

    host.stop_daemon(rustix::process::Signal::TERM)?;
    host.start_daemon()?;
    assert_eq!(rule(&host, &push("feature/x"))?, "autonomy:proposeOnly", "kept over a restart");
    assert!(guardctl(&host, &["autonomy", "set", "x", "actWithApproval"])?.status.success());
    assert_eq!(rule(&host, &push("feature/x"))?, id);
    assert!(guardctl(&host, &["approvals", "revoke", &id])?.status.success());
    assert_eq!(rule(&host, &push("feature/x"))?, "builtin:gitPush");

    let mut lifted = json!({"action": {"classes": ["vendorSyncWrite"]}});
    assert_eq!(rule(&host, &lifted)?, "soft");
    lifted["override"] = json!({"by": "somebody else", "justification": "the tracker is down"});
    let answers = eval(host.guardctl(&["eval"]), &format!("{lifted}\n"))?;
    assert_eq!((&answers[0]["outcome"], &answers[0]["overridden"]["by"]), (&json!("allow"), &json!("root")));
    let record = host.wait_for_record(|record| record["kind"] == "override")?;
    assert_eq!(record["detail"]["overridden"]["justification"], "the tracker is down");
    Ok(())
}

/// C-103: the managed file that an environment variable pins comes before what is stored, by either of its two names.
#[test]
fn a_managed_file_of_the_environment_comes_first() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let push = json!({"principal": {"agent": "a"}, "action": {"classes": ["gitPush"], "refs": ["main"]}});
    for variable in [None, Some("GUARD_MANAGED_POLICY"), Some("CC_SERVER_MANAGED_POLICY")] {
        let mut host = Host::new()?;
        let managed = host.path("managed.json");
        own_file(&managed, r#"{"rules": [{"id": "fixed", "class": "gitPush", "effect": "deny"}]}"#)?;
        std::os::unix::fs::chown(&managed, Some(0), Some(0))?;
        if let Some(variable) = variable {
            host.variable(variable, &managed.display().to_string());
        }
        host.start_daemon()?;
        let stored = host.path("rule.json");
        own_file(&stored, r#"{"id": "loose", "scope": "agent:a", "class": "gitPush", "effect": "allow"}"#)?;
        let added = guardctl(&host, &["rules", "add", &stored.display().to_string()])?;
        assert!(added.status.success(), "{}", told(&added));
        let expected = if variable.is_some() { "fixed" } else { "loose" };
        assert_eq!(rule(&host, &push)?, expected, "{variable:?}");
    }
    Ok(())
}
