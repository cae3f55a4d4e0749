//! Real tools at ordinary work under their profiles: what a fence that stands must not get in the way of.
//!
//! Packages come from what this machine has already; nothing is fetched.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use guard_tests::{
    desk::{Desk, PATH, give, succeed},
    host::UID,
    skip_host,
};
use serde_json::{Value, json};

/// A first directory entry that begins like this, below any of these places.
fn find(places: &[&str], begins: &str) -> Option<PathBuf> {
    places.iter().find_map(|place| {
        let entries = fs::read_dir(place).ok()?.flatten();
        entries.map(|entry| entry.path()).find(|path| {
            path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(begins))
        })
    })
}

/// git: clone, commit, rebase and push to a bare remote, which the launch opens. A push asks, and nobody
/// can hold it yet, so the record says what policy wants and that it happened all the same. C-013, C-018, R-71
#[test]
fn git_works_under_its_profile() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let desk = Desk::new()?;
    let host = &desk.host;
    let remote = host.path("remote.git");
    fs::create_dir(&remote)?;
    chown(&remote, Some(UID), Some(UID))?;
    fs::write(
        host.path("home/.gitconfig"),
        "[user]\nname = a\nemail = a@example.org\n[init]\ndefaultBranch = main\n",
    )?;
    give(&host.path("home"))?;
    let remote = remote.display().to_string();
    desk.before(&format!(
        "git init -q --bare {remote}; git clone -q {remote} /tmp/$$ && cd /tmp/$$ && echo one > file && \
             git add file && git commit -qm one && git push -q origin HEAD:main; rm -rf /tmp/$$"
    ))?;
    let log = desk.governed(
        &["--profile", "git", "--rw", &remote],
        &format!(
            "git clone -q {remote} clone; cd clone; git switch -qc work; echo two >> file; git commit -qam two; \
             git fetch -q; git rebase -q origin/main; git status --short; git gc -q; git push -q origin work; \
             git log --format=%s origin/work"
        ),
    )?;
    assert_eq!(log, "two\none\n");
    assert_eq!(desk.before(&format!("git -C {remote} log --format=%s work"))?, "two\none\n");
    let commit = desk.recorded("gitCommit")?;
    assert_eq!(commit["decision"]["outcome"], "allow", "{commit}");
    let push = desk.recorded("gitPush")?;
    assert_eq!(push["decision"]["outcome"], "defer_for_approval", "{push}");
    assert_eq!(push["decision"]["rule"], "builtin:gitPush", "{push}");
    assert_eq!(push["strength"], "observed", "{push}");
    Ok(())
}

/// npm: a clean install of a real package from the cache, and a script that uses it. C-021
#[test]
fn npm_installs_from_its_cache_under_its_profile() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let desk = Desk::new()?;
    let host = &desk.host;
    let places =
        ["/usr/lib/node_modules/npm/node_modules", "/usr/share/nodejs", "/usr/share/npm/node_modules"];
    let package = find(&places, "semver").context("npm's own packages are not where they are known to be")?;
    give(&host.path("home"))?;
    let packed = desk.before(&format!(
        "mkdir pack; cp -rL {} pack/semver; cd pack; npm pack --json --ignore-scripts --offline ./semver; \
             npm cache add --offline --loglevel error ./semver-*.tgz >&2; rm -rf semver",
        package.display()
    ))?;
    let packed: Value = serde_json::from_str(&packed)?;
    let about =
        packed.get(0).or_else(|| packed.as_object()?.values().next()).context("npm pack said nothing")?;
    let version = about["version"].as_str().context("a version")?;
    let app = json!({"name": "app", "version": "1.0.0", "dependencies": {"semver": version}});
    let lock = json!({
        "name": "app", "version": "1.0.0", "lockfileVersion": 3, "requires": true,
        "packages": {
            "": app,
            "node_modules/semver": {
                "version": version,
                "resolved": format!("https://registry.npmjs.org/semver/-/semver-{version}.tgz"),
                "integrity": about["integrity"],
            },
        },
    });
    let worktree = host.worktree();
    fs::remove_dir_all(worktree.join("pack"))?;
    fs::write(worktree.join("package.json"), app.to_string())?;
    fs::write(worktree.join("package-lock.json"), lock.to_string())?;
    give(&worktree)?;
    let script = format!("node -e \"console.log(require('semver').valid('{version}'))\"");
    let said = desk.governed(
        &["--profile", "npm"],
        &format!("npm ci --offline --no-audit --no-fund --ignore-scripts >&2; {script}"),
    )?;
    assert_eq!(said.trim(), version);
    desk.recorded("packageInstall")?;
    Ok(())
}

/// pip: a real wheel into the worktree, and a program that uses it. C-021
#[test]
fn pip_installs_a_wheel_under_its_profile() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let desk = Desk::new()?;
    let host = &desk.host;
    let wheel = find(&["/usr/share/python-wheels"], "pip-")
        .context("no wheel in /usr/share/python-wheels; `cargo xtask setup` installs python3-pip-whl")?;
    give(&host.path("home"))?;
    let said = desk.governed(
        &["--profile", "pip"],
        &format!(
            "/usr/bin/python3 -m pip install -q --no-index --no-deps --disable-pip-version-check --target site {}; \
             PYTHONPATH=site /usr/bin/python3 -c 'import pip; print(pip.__file__)'",
            wheel.display()
        ),
    )?;
    assert!(said.starts_with(&host.worktree().display().to_string()), "{said}");
    desk.recorded("packageInstall")?;
    Ok(())
}

/// cargo: a program with a real dependency, built from the registry's cache. A toolchain that only root can read is
/// used by a launch as root. What it unlinks and renames is its own.
#[test]
fn cargo_builds_from_its_cache_under_its_profile() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let desk = Desk::new()?;
    let host = &desk.host;
    let everybody = fs::metadata("/usr/bin/cargo").is_ok_and(|about| about.permissions().mode() & 1 == 1);
    let own_home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| own_home.join(".cargo"), PathBuf::from);
    let (home, path) = if everybody {
        copy_of_registry(&cargo_home.join("registry"), &host.path("home/.cargo/registry"), "itoa")?;
        give(&host.path("home"))?;
        (host.path("home"), PATH.to_owned())
    } else {
        (own_home, format!("{}/bin:{PATH}", cargo_home.display()))
    };
    let worktree = host.path("app");
    fs::create_dir_all(worktree.join("src"))?;
    fs::write(
        worktree.join("Cargo.toml"),
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nitoa = \"1\"\n[workspace]\n",
    )?;
    fs::write(
        worktree.join("src/main.rs"),
        "fn main() { println!(\"{}\", itoa::Buffer::new().format(42)); }\n",
    )?;
    if everybody {
        give(&worktree)?;
    }
    let mut options = vec!["--profile", "cargo"];
    options.extend((!everybody).then_some("--as-root"));
    let mut command = desk.agent(&options, "cargo run -q --offline");
    let said = succeed(command.env("HOME", home).env("PATH", path).current_dir(&worktree))?;
    assert_eq!(said, "42\n");
    let ended = |record: &serde_json::Value| record["detail"]["event"] == "agent ended";
    host.wait_for_record(ended)?;
    let deletes = |record: &serde_json::Value| record["request"]["action"].to_string().contains("fileDelete");
    let deleted: Vec<_> = host.records()?.into_iter().filter(deletes).collect();
    assert!(deleted.is_empty(), "R-70: a build deletes nothing that was there: {deleted:#?}");
    assert_eq!(fs::metadata(worktree.join("target"))?.uid(), if everybody { UID } else { 0 });
    Ok(())
}

/// The archives and the index entries of one crate, from the cache that built this test.
fn copy_of_registry(from: &Path, to: &Path, name: &str) -> Result<()> {
    let entry = Path::new(".cache").join(&name[..2]).join(&name[2..4]).join(name);
    for index in fs::read_dir(from.join("index"))? {
        let index = index?;
        let to = to.join("index").join(index.file_name());
        if !index.path().join(&entry).exists() {
            continue;
        }
        fs::create_dir_all(to.join(&entry).parent().context("an entry lies in a directory")?)?;
        for file in [Path::new("config.json"), &entry] {
            fs::copy(index.path().join(file), to.join(file))?;
        }
    }
    for cache in fs::read_dir(from.join("cache"))? {
        let cache = cache?;
        let to = to.join("cache").join(cache.file_name());
        fs::create_dir_all(&to)?;
        for archive in fs::read_dir(cache.path())?.flatten() {
            if archive.file_name().to_string_lossy().starts_with(&format!("{name}-")) {
                fs::copy(archive.path(), to.join(archive.file_name()))?;
            }
        }
    }
    Ok(())
}
