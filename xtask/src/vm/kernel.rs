//! Debian's cloud kernels, unpacked into the cache; nothing is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// The kernel image of the newest cloud kernel of this series (`6.1`) that the configured mirrors have.
pub(crate) fn image(cache: &Path, series: &str) -> Result<PathBuf> {
    let directory = cache.join("kernels").join(series);
    if let Some(image) = unpacked(&directory) {
        return Ok(image);
    }
    let package = match newest(series)? {
        Some(package) => package,
        None => {
            run(Command::new("apt-get").args(["update", "-qq"]))?;
            newest(series)?.with_context(|| {
                format!(
                    "apt knows no linux-image-{series}.*-cloud-amd64: Debian 12 has 6.1, its backports 6.12"
                )
            })?
        }
    };
    eprintln!("downloading {package}");
    let download = directory.with_extension("download");
    // What an interrupted attempt left.
    let _ = fs::remove_dir_all(&download);
    fs::create_dir_all(&download).with_context(|| format!("cannot make {}", download.display()))?;
    run(Command::new("apt-get").args(["download", "-qq", &package]).current_dir(&download))?;
    let archive = fs::read_dir(&download)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get download left no package in {}", download.display()))?;
    run(Command::new("dpkg").arg("-x").arg(&archive).arg(&download))?;
    fs::remove_file(&archive)?;
    fs::create_dir_all(directory.parent().unwrap_or(cache))?;
    let _ = fs::remove_dir_all(&directory);
    fs::rename(&download, &directory)?;
    unpacked(&directory).with_context(|| format!("{package} holds no boot/vmlinuz-*"))
}

fn unpacked(directory: &Path) -> Option<PathBuf> {
    fs::read_dir(directory.join("boot"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
}

fn newest(series: &str) -> Result<Option<String>> {
    let output = Command::new("apt-cache")
        .args(["pkgnames", &format!("linux-image-{series}.")])
        .output()
        .context("apt-cache did not start; the kernels come from Debian's archive")?;
    Ok(newest_of(&String::from_utf8_lossy(&output.stdout)))
}

/// Of `linux-image-6.1.0-57-cloud-amd64`, `linux-image-6.12.117+deb12-cloud-amd64` and the like the newest.
fn newest_of(names: &str) -> Option<String> {
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let version = name.strip_prefix("linux-image-")?.strip_suffix("-cloud-amd64")?;
        let parts = version.split(|character: char| !character.is_ascii_digit());
        Some(parts.filter_map(|part| part.parse().ok()).collect())
    };
    names
        .lines()
        .filter_map(|name| Some((numbers(name)?, name)))
        .max_by(|(one, _), (other, _)| one.cmp(other))
        .map(|(_, name)| name.to_owned())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?} did not start"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_signed_kernel_is_taken() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.1.0-57-cloud-amd64\n\
                     linux-image-6.1.0-58-cloud-amd64-unsigned\nlinux-image-6.1.0-57-cloud-amd64-dbg\n";
        assert_eq!(newest_of(names).as_deref(), Some("linux-image-6.1.0-57-cloud-amd64"));
        let backports = "linux-image-6.12.9+deb12-cloud-amd64\nlinux-image-6.12.117+deb12-cloud-amd64\n\
                         linux-image-6.12.117+deb12-cloud-amd64-unsigned\n";
        assert_eq!(newest_of(backports).as_deref(), Some("linux-image-6.12.117+deb12-cloud-amd64"));
    }
}
