//! Embeds the BPF object if there is one: `$GUARD_BPF_OBJECT`, or `bpf/guard.o` in the target directory, where
//! `cargo xtask build` puts it. Without it the daemon is built all the same and says so when it runs.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rustc-check-cfg=cfg(guard_bpf_object)");
    println!("cargo::rerun-if-env-changed=GUARD_BPF_OBJECT");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?);
    let object = match env::var_os("GUARD_BPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        None => {
            let Some(target) = target_directory(&out) else { return Ok(()) };
            target.join("bpf/guard.o")
        }
    };
    // Watching the directory notices the object when it appears; a missing file would make every build run this.
    if let Some(directory) = object.parent() {
        fs::create_dir_all(directory)?;
        println!("cargo::rerun-if-changed={}", directory.display());
    }
    if object.exists() {
        fs::copy(&object, out.join("guard.o"))?;
        println!("cargo::rustc-cfg=guard_bpf_object");
    }
    Ok(())
}

/// Cargo marks its target directory with `CACHEDIR.TAG`.
fn target_directory(out: &Path) -> Option<&Path> {
    out.ancestors().find(|directory| directory.join("CACHEDIR.TAG").exists())
}
