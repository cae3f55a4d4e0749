//! One session of many acts by real tools: the record has exactly the classes and facets of each, none missing, none
//! invented. The acts and what each is are in `fixtures/acts.txt`.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use guard_tests::{
    approver::Approver,
    desk::{Desk, give},
    host::{UID, own_file},
    skip_host,
};
use serde_json::Value;

const ACTS: &str = include_str!("../fixtures/acts.txt");

/// Tools that this machine need not have: what they are asked to do is seen before they do it.
const STUBS: [&str; 50] = [
    "gh",
    "glab",
    "hub",
    "tea",
    "jira",
    "linear",
    "npm",
    "pnpm",
    "yarn",
    "bun",
    "pip",
    "pip3",
    "uv",
    "poetry",
    "pipx",
    "cargo",
    "gem",
    "bundle",
    "go",
    "apt",
    "apt-get",
    "apt-cache",
    "brew",
    "conda",
    "dnf",
    "apk",
    "snap",
    "docker",
    "podman",
    "nerdctl",
    "kubectl",
    "qemu-system-x86_64",
    "firecracker",
    "virsh",
    "vagrant",
    "systemd-run",
    "machinectl",
    "limactl",
    "pass",
    "op",
    "vault",
    "aws",
    "gpg",
    "gitlike",
    "svn",
    "hg",
    "flatpak",
    "yum",
    "lxc",
    "npx",
];

struct Act {
    command: String,
    /// Programs started; nothing where it is left open.
    ran: Option<Vec<String>>,
    /// Acts of a class, sorted.
    classed: Vec<String>,
}

fn acts() -> Vec<Act> {
    let mut acts: Vec<Act> = Vec::new();
    for line in ACTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(command) = line.strip_prefix("$ ") {
            acts.push(Act { command: command.to_owned(), ran: None, classed: Vec::new() });
            continue;
        }
        let act = acts.last_mut().expect("a command comes first");
        match line.strip_prefix("ran") {
            Some(" *") => {}
            Some(programs) => act.ran = Some(programs.split_whitespace().map(str::to_owned).collect()),
            None => act.classed.push(line.to_owned()),
        }
    }
    for act in &mut acts {
        act.classed.sort();
    }
    acts
}

fn prepare(desk: &Desk) -> Result<()> {
    let host = &desk.host;
    let [worktree, home] = [host.worktree(), host.path("home")];
    fs::write(
        home.join(".gitconfig"),
        "[user]\nname = a\nemail = a@example.org\n[init]\ndefaultBranch = main\n[gc]\nauto = 0\n\
         [maintenance]\nauto = false\n[push]\ndefault = current\n[safe]\ndirectory = *\n",
    )?;
    let stubs = worktree.join("bin");
    fs::create_dir(&stubs)?;
    for stub in STUBS {
        fs::copy("/bin/true", stubs.join(stub))?;
    }
    let repo = worktree.join("repo");
    fs::create_dir_all(repo.join("sub"))?;
    for n in 1..=30 {
        fs::write(repo.join(format!("old-{n}")), "a\n")?;
    }
    fs::create_dir(repo.join("old-dir"))?;
    for name in ["a", "b", "new-2", "old-dir/a", "old-dir/b", "script.py", "gitlike"] {
        fs::write(repo.join(name), "")?;
    }
    fs::copy("/bin/true", repo.join("gitlike"))?;
    let script = repo.join("script.sh");
    fs::write(&script, "#!/bin/sh\n/bin/true\n")?;
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    own_file(&host.path("outside/keep"), "kept")?;
    give(&worktree)?;
    give(&home)?;
    desk.before(
        "git init -q --bare remote.git; cd repo; echo '*' >.gitignore; git init -q; git add -f a b .gitignore; \
         git commit -qm one; git remote add origin ../remote.git; git push -qu origin main; git tag v1; \
         git switch -qc side; echo x >side; git add -f side; git commit -qm side; git switch -q main; \
         cd sub; git init -q; git commit -q --allow-empty -m sub; git remote add origin ../../sub.git; \
         git init -q --bare ../../sub.git; git push -q origin main",
    )?;
    Ok(())
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// What git starts for itself: it is judged like everything else, and differs between git's releases.
const OF_GIT: [&str; 7] = [
    "git receive-pack",
    "git-receive-pack",
    "git maintenance",
    "git gc",
    "git stash create",
    "git reset --hard",
    "git symbolic-ref",
];

fn of_git(record: &Value) -> bool {
    let commands = strings(&record["request"]["action"]["commands"]);
    let Some((program, rest)) = commands.first().and_then(|command| command.split_once(' ')) else {
        return false;
    };
    let command = format!("{} {rest}", program.rsplit('/').next().unwrap_or(program));
    OF_GIT.iter().any(|begin| command.starts_with(begin))
}

/// A record in the words of the table; `None` for what has no class but `processSpawn`.
fn line(record: &Value, worktree: &Path) -> Option<String> {
    let action = &record["request"]["action"];
    let classes: Vec<&str> =
        strings(&action["classes"]).into_iter().filter(|class| *class != "processSpawn").collect();
    if classes.is_empty() {
        return None;
    }
    let detail = &record["detail"];
    let mut line = format!("{} ", classes.join("+"));
    match detail["act"].as_str() {
        Some("exec") => {
            line += program(record);
            for facet in ["refs", "hosts"] {
                let values = strings(&action[facet]);
                if !values.is_empty() {
                    let _ = write!(line, " {facet}={}", values.join(","));
                }
            }
        }
        Some("connect") => {
            let _ = write!(line, "{}:{}", strings(&action["hosts"]).join(","), detail["port"]);
        }
        _ => {
            let key = if detail["other"].as_str().is_some_and(|other| !other.is_empty())
                && detail["act"] == "rename"
                && classes.contains(&"fileDelete")
            {
                "other"
            } else {
                "path"
            };
            let path = Path::new(detail[key].as_str().unwrap_or(""));
            let shown = path.strip_prefix(worktree.join("repo")).or_else(|_| path.strip_prefix(worktree));
            let shown =
                shown.or_else(|_| path.strip_prefix(worktree.parent().unwrap_or(worktree))).unwrap_or(path);
            line += &shown.display().to_string();
        }
    }
    if record["effect"] != "done" {
        let _ = write!(line, " {}", record["effect"].as_str().unwrap_or("?"));
    }
    Some(line)
}

fn program(record: &Value) -> &str {
    let name = record["exe"].as_str().unwrap_or("?").rsplit('/').next().unwrap_or("?");
    // Its file has the release in its name.
    if name.starts_with("python3.") { "python3" } else { name }
}

/// Each act of a long session is named by its classes and facets. C-012 C-013 C-014 C-015 C-016 C-017 C-018 C-019
/// C-021 C-022 C-024 R-25 R-70
#[test]
fn a_session_of_many_acts_is_told_exactly() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let desk = Desk::new()?;
    let _approver = Approver::start(&desk.host, |_| Some(vec!["yes"]))?;
    prepare(&desk)?;
    let host = &desk.host;
    let acts = acts();
    ensure!(acts.len() >= 200, "{} acts", acts.len());
    // A marker before each act tells where it begins; the pause after it lets what an act left behind end.
    let mut script =
        format!("exec 2>>{0}/errors; export PATH={0}/bin:$PATH; cd repo\n", host.worktree().display());
    for (number, act) in acts.iter().enumerate() {
        let _ = writeln!(script, "/bin/true mark-{number}\n( {} ) || echo \"{number}: $?\" >&2", act.command);
    }
    script.push_str("/bin/true mark-end\n");
    let file = host.worktree().join("acts.sh");
    own_file(&file, &script)?;
    desk.governed(&["--agent", "actor", "--profile", "git"], "/bin/bash acts.sh")?;
    host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
    std::thread::sleep(Duration::from_millis(200));
    let mut records: Vec<Value> =
        host.records()?.into_iter().filter(|record| record["principal"]["agent"] == "actor").collect();
    let lost: Vec<&Value> = records.iter().filter(|record| record["kind"] == "loss").collect();
    ensure!(lost.is_empty(), "{lost:?}");
    records.sort_by(|one, other| one["ts"].as_str().cmp(&other["ts"].as_str()));
    let mark = |record: &Value| -> Option<String> {
        let command = strings(&record["request"]["action"]["commands"]).first()?.to_string();
        command.strip_prefix("/bin/true mark-").map(str::to_owned)
    };
    let mut wrong = String::new();
    let mut rest = records.iter().skip_while(|record| mark(record).is_none()).peekable();
    for (number, act) in acts.iter().enumerate() {
        let begin = rest.next().and_then(mark).context("a mark")?;
        ensure!(begin == number.to_string(), "mark {begin} where {number} belongs");
        let mut of_act = Vec::new();
        while let Some(record) = rest.next_if(|record| mark(record).is_none()) {
            of_act.push(record);
        }
        let ran: Vec<String> = of_act
            .iter()
            .filter(|record| record["detail"]["act"] == "exec")
            .map(|record| program(record).to_owned())
            .collect();
        let mut classed: Vec<String> = of_act
            .iter()
            .filter(|record| act.ran.is_some() || !of_git(record))
            .filter_map(|record| line(record, &host.worktree()))
            .collect();
        classed.sort();
        if act.ran.as_ref().is_some_and(|expected| *expected != ran) || act.classed != classed {
            let ran: Vec<&str> =
                of_act.iter().flat_map(|record| strings(&record["request"]["action"]["commands"])).collect();
            let _ = writeln!(
                wrong,
                "$ {}\n  ran {}  (expected {})\n  {}\n  expected\n  {}",
                act.command,
                ran.join("; "),
                act.ran.as_ref().map_or("*".to_owned(), |ran| ran.join(" ")),
                classed.join("\n  "),
                act.classed.join("\n  "),
            );
        }
    }
    let errors = fs::read_to_string(host.worktree().join("errors")).unwrap_or_default();
    ensure!(
        wrong.is_empty(),
        "told otherwise than it was (uid {UID}):\n{wrong}\n--- what the tools said\n{errors}"
    );
    Ok(())
}
