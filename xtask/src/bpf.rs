//! Builds the BPF object with whichever toolchain is there.
//!
//! Two ways lead to `core` for a target that rustup has no build of: rustup's nightly with the component
//! `rust-src`, or Debian's `rustc-web`, `cargo-web` and `rust-web-src`. Either needs a `bpf-linker` that was built
//! against the LLVM inside that compiler, since it reads its bitcode; one is built into the cache if it is
//! missing. Nothing outside the target directory and the cache is changed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The release of bpf-linker that this project is built with.
const LINKER_VERSION: &str = "0.13.0";

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    /// The workspace.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
    /// What outlives `cargo clean`: `$GUARD_CACHE`, or `~/.cache/guard`.
    pub(crate) cache: PathBuf,
}

impl Paths {
    /// Reads the environment.
    pub(crate) fn find() -> Result<Self> {
        let root = workspace_root()?;
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let cache = match env::var_os("GUARD_CACHE") {
            Some(cache) => PathBuf::from(cache),
            None => PathBuf::from(env::var_os("HOME").context("neither GUARD_CACHE nor HOME is set")?)
                .join(".cache/guard"),
        };
        let target = root.join(target);
        Ok(Self { root, target, cache })
    }

    /// Where the object goes, and where the daemon's build script looks for it.
    pub(crate) fn object(&self) -> PathBuf {
        env::var_os("GUARD_BPF_OBJECT").map_or_else(|| self.target.join("bpf/guard.o"), PathBuf::from)
    }
}

/// The checkout that this is run in. Not the one that it was built in: a target directory may outlive a clone and
/// serve the next one, which cargo does not tell apart.
fn workspace_root() -> Result<PathBuf> {
    if let Some(package) = env::var_os("CARGO_MANIFEST_DIR") {
        return Ok(Path::new(&package).parent().context("xtask has no parent directory")?.to_path_buf());
    }
    let here = env::current_dir().context("the current directory is gone")?;
    let root = here.ancestors().find(|path| path.join("xtask/Cargo.toml").is_file());
    Ok(root.context("this is not a checkout of guard: run `cargo xtask` inside one")?.to_path_buf())
}

/// What to build.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// With optimisation
    #[arg(long)]
    release: bool,
}

/// Builds the BPF programs and then the workspace.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    crate::setup::ensure(crate::setup::Need::Bpf)?;
    let paths = Paths::find()?;
    let built = build(&paths)?;
    eprintln!("BPF programs: {} (linked by {})", built.toolchain, built.linker.display());
    println!("{}", built.object.display());
    workspace(&paths, arguments.release)
}

/// Builds everything that runs in user space, with the object embedded.
pub(crate) fn workspace(paths: &Paths, release: bool) -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args(["build", "--workspace", "--exclude", "guard-ebpf", "--bins", "--quiet"])
        .current_dir(&paths.root);
    if release {
        command.arg("--release");
    }
    run_command(&mut command, "building the workspace")
}

/// Debian's packages that would give this machine a compiler for BPF; none if one is there.
pub(crate) fn missing_debian_packages() -> Vec<String> {
    if Toolchain::find().is_ok_and(|toolchain| {
        Paths::find().is_ok_and(|paths| cached_linker(&paths, toolchain.llvm_major).is_some())
            || PathBuf::from(format!("/usr/lib/llvm-{}/bin/llvm-config", toolchain.llvm_major)).exists()
    }) {
        return Vec::new();
    }
    let mut packages = ["rustc-web", "cargo-web", "rust-web-src", "zlib1g-dev", "libzstd-dev", "libxml2-dev"]
        .map(str::to_owned)
        .to_vec();
    // Until the compiler is here its LLVM is not known; this is what Debian 12's is built with.
    let major = Toolchain::find().map_or(22, |toolchain| toolchain.llvm_major);
    packages.extend([format!("llvm-{major}-dev"), format!("libpolly-{major}-dev")]);
    packages
}

/// How the object came to be.
#[derive(Clone, Debug)]
pub(crate) struct BuiltWith {
    /// For people: which compiler.
    pub(crate) toolchain: String,
    /// The linker that was used.
    pub(crate) linker: PathBuf,
    /// The object.
    pub(crate) object: PathBuf,
}

/// A compiler that can build `core`.
struct Toolchain {
    name: String,
    cargo: Vec<String>,
    rustc: PathBuf,
    llvm_major: u32,
}

impl Toolchain {
    /// Looks at one compiler; `None` if it is not there or has no library sources.
    fn probe(name: &str, cargo: &[&str], rustc: &Path) -> Option<Self> {
        let ask = |argument: &str| {
            let mut command = Command::new(rustc);
            clean(&mut command);
            let output =
                command.args(argument.split(' ')).output().ok().filter(|output| output.status.success())?;
            String::from_utf8(output.stdout).ok()
        };
        let sysroot = PathBuf::from(ask("--print sysroot")?.trim());
        if !sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").exists() {
            return None;
        }
        let about = ask("-vV")?;
        let find = |key: &str| about.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let llvm_major = find("LLVM version:")?.split('.').next()?.parse().ok()?;
        let release = find("release:")?;
        Some(Self {
            name: format!("{name}, rustc {release}, LLVM {llvm_major}"),
            cargo: cargo.iter().map(ToString::to_string).collect(),
            rustc: rustc.to_path_buf(),
            llvm_major,
        })
    }

    fn find() -> Result<Self> {
        let nightly = Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"]).output().ok();
        let nightly = nightly.filter(|output| output.status.success()).and_then(|output| {
            let rustc = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
            Self::probe("rustup nightly with rust-src", &["rustup", "run", "nightly", "cargo"], &rustc)
        });
        let debian = || Self::probe("Debian's toolchain", &["/usr/bin/cargo"], Path::new("/usr/bin/rustc"));
        nightly.or_else(debian).context(
            "no compiler here can build for bpfel-unknown-none: install rustup's nightly with rust-src \
             (`rustup toolchain install nightly --component rust-src`), or Debian's packages rustc-web, \
             cargo-web and rust-web-src",
        )
    }
}

/// Removes what a surrounding cargo tells its children and would mislead another cargo.
fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_cargo = text.starts_with("CARGO") && text != "CARGO_HOME";
        if of_cargo
            || matches!(
                text,
                "RUSTUP_TOOLCHAIN" | "RUSTC" | "RUSTFLAGS" | "RUSTC_WRAPPER" | "LD_LIBRARY_PATH"
            )
        {
            command.env_remove(name);
        }
    }
}

fn path_with(first: &[PathBuf]) -> Result<std::ffi::OsString> {
    let rest = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(first.iter().cloned().chain(env::split_paths(&rest)))?)
}

fn run_command(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("{what}: {command:?} did not start"))?;
    if !status.success() {
        bail!("{what} failed with {status}: {command:?}");
    }
    Ok(())
}

/// The cached bpf-linker for this LLVM, if it is there.
///
/// The cache holds one linker; a file beside it names the LLVM it was built against.
fn cached_linker(paths: &Paths, llvm_major: u32) -> Option<PathBuf> {
    let root = paths.cache.join("bpf-linker");
    let binary = root.join("bin/bpf-linker");
    let built_for = fs::read_to_string(root.join("llvm-major")).ok();
    let fits = built_for.is_none_or(|text| text.trim() == llvm_major.to_string());
    (binary.exists() && fits).then_some(binary)
}

/// The cached bpf-linker, or one that is built now.
fn linker(paths: &Paths, llvm_major: u32) -> Result<PathBuf> {
    if let Some(binary) = cached_linker(paths, llvm_major) {
        return Ok(binary);
    }
    let root = paths.cache.join("bpf-linker");
    let binary = root.join("bin/bpf-linker");
    let marker = root.join("llvm-major");
    let llvm = PathBuf::from(format!("/usr/lib/llvm-{llvm_major}/bin"));
    eprintln!("building bpf-linker {LINKER_VERSION} for LLVM {llvm_major} into {}", root.display());
    let mut command = Command::new("cargo");
    clean(&mut command);
    command.args(["install", "bpf-linker", "--version", LINKER_VERSION, "--force", "--no-default-features"]);
    command.args(["--features", &format!("llvm-{llvm_major}"), "--root"]).arg(&root);
    command.env("PATH", path_with(&[llvm])?);
    run_command(&mut command, "building bpf-linker").with_context(|| {
        format!(
            "bpf-linker needs LLVM {llvm_major} to build against: on Debian llvm-{llvm_major}-dev, \
             libpolly-{llvm_major}-dev, zlib1g-dev, libzstd-dev and libxml2-dev"
        )
    })?;
    fs::write(&marker, format!("{llvm_major}\n"))
        .with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(binary)
}

/// Builds the object and puts it where the daemon's build script looks.
pub(crate) fn build(paths: &Paths) -> Result<BuiltWith> {
    let toolchain = Toolchain::find()?;
    let linker = linker(paths, toolchain.llvm_major)?;
    let linker_directory = linker.parent().context("bpf-linker has no directory")?.to_path_buf();
    let target = paths.target.join("bpf-build");
    // bpf-linker wants debug information to make BTF from. v3 has the atomic add that returns a value
    // (kernel 5.12 and later).
    let flags = [
        format!("--cfg=bpf_target_arch=\"{}\"", env::consts::ARCH),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        "-Ctarget-cpu=v3".into(),
        "-Dwarnings".into(),
    ];
    let mut command = Command::new(&toolchain.cargo[0]);
    clean(&mut command);
    command.args(&toolchain.cargo[1..]);
    command.args(["build", "--release", "--target", "bpfel-unknown-none", "-Zbuild-std=core"]);
    command.current_dir(paths.root.join("guard-ebpf"));
    command.env("RUSTC", &toolchain.rustc).env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command.env("CARGO_TARGET_DIR", &target).env("PATH", path_with(&[linker_directory])?);
    run_command(&mut command, "building the BPF programs")?;

    let object = paths.object();
    put(&target.join("bpfel-unknown-none/release/guard"), &object)?;
    Ok(BuiltWith { toolchain: toolchain.name, linker, object })
}

/// Replaces `to` at once, and only if it differs: what embeds it is rebuilt when it changes.
fn put(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let directory = to.parent().with_context(|| format!("{} has no directory", to.display()))?;
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let new = to.with_extension("new");
    fs::write(&new, bytes).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, to).with_context(|| format!("cannot put {} in place", to.display()))
}
