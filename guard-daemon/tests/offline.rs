//! guardctl without a daemon, run as people run it.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guardctl"));
    command.args(arguments).env_remove("GUARD_SOCKET");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn guardctl(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(arguments).spawn().expect("guardctl starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that refuses its files does not read its input.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("guardctl ends");
    writer.join().expect("the writer ends");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = text(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path.display().to_string()
    }
}

/// One line out for each line in, in order; a bad line has its error in its place and changes the exit status alone.
#[test]
fn eval_answers_line_by_line() {
    let input = concat!(
        r#"{"id": "a", "action": {"classes": ["gitCommit"]}}"#,
        "\r\n\n  \t\n",
        r#"{"id": "b", "action": {"class": ["gitPush"]}}"#,
        "\n{\"id\": \"c\"\n",
        r#"{"id": "d", "action": {"classes": ["gitPush"]}, "approver": true}"#,
        "\n",
        r#"{"action": {"classes": ["gitPushh"]}}"#,
        "\n",
        r#"{"action": {"classes": ["gitPush"]}}"#,
    );
    let output = guardctl(&["eval"], input.as_bytes());
    let found = lines(&output);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(found.len(), 6, "{found:?}");
    assert_eq!((&found[0]["id"], &found[0]["outcome"]), (&json!("a"), &json!("allow")));
    let unknown = json!({"line": 4, "id": "b", "error": {
        "code": "unknown_key", "message": found[1]["error"]["message"], "column": 24, "nearest": "classes"}});
    assert_eq!(found[1], unknown);
    assert_eq!((&found[2]["line"], &found[2]["error"]["code"]), (&json!(5), &json!("malformed_json")));
    assert_eq!(found[2].get("id"), None, "a line that cannot be read has no name");
    assert_eq!(found[3]["outcome"], "defer_for_approval");
    assert_eq!(found[4]["error"]["code"], "unknown_class");
    assert_eq!(found[4]["error"]["nearest"], "gitPush");
    assert_eq!(found[5]["denied"]["code"], "no_approver");
    assert_eq!(found[5].get("id"), None);
    let good = guardctl(&["eval"], br#"{"action": {"classes": ["gitPush"]}}"#);
    assert_eq!(good.status.code(), Some(0), "a denial is no error");
}

/// A line above 1 MiB is a fault of its own and the next line is read as ever.
#[test]
fn eval_drops_what_is_too_large() {
    let mut input = vec![b'x'; 3 << 20];
    input.extend_from_slice(b"\n{\"id\": \"after\"}\n{\"a\":");
    input.extend_from_slice(&[b'['; 200]);
    let output = guardctl(&["eval"], &input);
    let found = lines(&output);
    let error = json!({"code": "too_large", "message": found[0]["error"]["message"], "column": 1});
    assert_eq!(found[0], json!({"line": 1, "error": error}));
    assert_eq!(found[1]["id"], "after");
    assert_eq!((&found[2]["line"], &found[2]["error"]["code"]), (&json!(3), &json!("too_deep")));
}

/// `R-60`: a faulty operator's file decides nothing; each fault is one line with its place.
#[test]
fn eval_refuses_faulty_files() {
    let files = Files::new();
    let policy = files.write(
        "policy.json",
        "{\"rules\": [\n {\"id\": \"a\", \"clas\": \"gitPush\", \"effect\": \"deny\"},\n \
         {\"id\": \"b\", \"class\": \"gitPush\", \"effect\": \"forbid\"}]}",
    );
    let output = guardctl(&["eval", "--policy", &policy], b"{}\n");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let stderr = text(&output.stderr);
    for line in [2, 3] {
        let start = format!("error[policy_invalid]: {policy}:{line}:");
        assert!(stderr.lines().any(|fault| fault.starts_with(&start)), "{stderr}");
    }
    assert!(stderr.lines().all(|fault| fault.starts_with("error[policy_invalid]: ")), "{stderr}");
    let missing = guardctl(&["eval", "--policy", "/no/such/file"], b"{}\n");
    assert_eq!((missing.status.code(), missing.stdout.len()), (Some(1), 0));
}

/// `C-055`, `R-15`: ceilings count over the session of the lines, and receipts settle what they counted.
#[test]
fn eval_keeps_what_sessions_use() {
    let files = Files::new();
    let policy = files.write(
        "policy.json",
        r#"{"rules": [{"id": "few", "class": "fileDelete", "effect": "allow", "constraints": {"max_count": 50}}]}"#,
    );
    let delete = |id: &str, session: &str, count: u64| {
        let action = json!({"classes": ["fileDelete"], "count": count});
        json!({"id": id, "principal": {"session": session}, "action": action, "approver": true})
    };
    let input = [
        delete("1", "a", 40),
        delete("2", "a", 20),
        delete("3", "b", 50),
        delete("4", "a", 10),
        json!({"receipt": "1", "session": "a", "ran": false}),
        json!({"receipt": "1", "session": "a", "ran": false}),
        delete("5", "a", 40),
        delete("6", "a", 1),
    ];
    let input: String = input.iter().map(|line| format!("{line}\n")).collect();
    let output = guardctl(&["eval", "--policy", &policy], input.as_bytes());
    let found = lines(&output);
    let outcomes: Vec<&str> =
        found.iter().map(|line| line["outcome"].as_str().unwrap_or("settled")).collect();
    let wanted = [
        "allow",
        "defer_for_approval",
        "allow",
        "allow",
        "settled",
        "settled",
        "allow",
        "defer_for_approval",
    ];
    assert_eq!(outcomes, wanted);
    assert_eq!(found[4], json!({"id": "1", "settled": true}));
    assert_eq!(found[5], json!({"id": "1", "settled": false}));
}

/// Answers come as soon as there is nothing more to read, not at the end of the input.
#[test]
fn eval_does_not_keep_answers_back() {
    let mut child = command(&["eval"]).spawn().expect("guardctl starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    for id in ["one", "two"] {
        stdin.write_all(format!("{{\"id\": \"{id}\"}}\n").as_bytes()).expect("written");
        let mut line = String::new();
        stdout.read_line(&mut line).expect("an answer");
        assert!(line.contains(id), "{line}");
    }
    drop(stdin);
    assert!(child.wait().expect("the end").success());
}
