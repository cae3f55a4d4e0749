//! Writes an initramfs: the cpio format "newc" that the kernel unpacks, with the libraries that each program names.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const REGULAR: u32 = 0o100_000;

/// An archive in the making. Parents come before what is in them, and nothing comes twice.
pub(crate) struct Initramfs<W> {
    out: W,
    written: u64,
    next_inode: u32,
    known: BTreeSet<PathBuf>,
}

impl<W: Write> Initramfs<W> {
    /// Starts an empty archive.
    pub(crate) fn new(out: W) -> Self {
        Self { out, written: 0, next_inode: 1, known: BTreeSet::from([PathBuf::from("/")]) }
    }

    /// Adds an empty directory and its parents.
    pub(crate) fn directory(&mut self, path: &Path) -> Result<()> {
        if !self.known.insert(path.to_path_buf()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, DIRECTORY, b"")
    }

    /// Adds a file with this content.
    pub(crate) fn file(&mut self, path: &Path, mode: u32, content: &[u8]) -> Result<()> {
        if !self.known.insert(path.to_path_buf()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, REGULAR | (mode & 0o7777), content)
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &Path, target: &Path) -> Result<()> {
        if !self.known.insert(path.to_path_buf()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, SYMLINK, target.as_os_str().as_bytes())
    }

    /// Adds a program of this machine at `to`, and its libraries where they are here.
    pub(crate) fn program(&mut self, from: &Path, to: &Path) -> Result<()> {
        let mode = fs::metadata(from).with_context(|| format!("no program {}", from.display()))?;
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.file(to, mode.permissions().mode(), &content)?;
        for library in libraries(from)? {
            if self.known.contains(&library) {
                continue;
            }
            let content = fs::read(&library).with_context(|| format!("cannot read {}", library.display()))?;
            self.file(&library, 0o755, &content)?;
        }
        Ok(())
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Result<W> {
        self.entry(Path::new("/TRAILER!!!"), 0, b"")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &Path) -> Result<()> {
        match path.parent() {
            Some(parent) if !self.known.contains(parent) => self.directory(parent),
            _ => Ok(()),
        }
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) -> Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        let size = u32::try_from(content.len()).with_context(|| format!("{} is too big", path.display()))?;
        // inode, mode, uid, gid, links, time, size, device twice, special device twice, name length, checksum
        let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
        let length = u32::try_from(name.len() + 1)?;
        let fields = [self.next_inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, length, 0];
        self.next_inode += 1;
        let mut header = b"070701".to_vec();
        for field in fields {
            write!(header, "{field:08x}")?;
        }
        header.extend(name);
        header.push(0);
        self.padded(&header)?;
        self.padded(content)
    }

    fn padded(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        let padding = [0_u8; 3];
        let missing = (4 - self.written % 4) % 4;
        self.out.write_all(&padding[..usize::try_from(missing)?])?;
        self.written += missing;
        Ok(())
    }
}

/// The libraries, loader included, that a program is linked to; none for a static one or a script.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd did not start")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{}: {}", program.display(), line.trim());
    }
    Ok(libraries_in(&text))
}

/// Reads `name => /path (address)` and `/path (address)`.
fn libraries_in(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.trim();
        let line = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = line.split(' ').next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_parents_padding_and_a_trailer() -> Result<()> {
        let mut archive = Initramfs::new(Vec::new());
        archive.file(Path::new("/a/b"), 0o755, b"hello")?;
        archive.file(Path::new("/a/b"), 0o755, b"twice is once")?;
        archive.link(Path::new("/a/c"), Path::new("b"))?;
        let bytes = archive.finish()?;
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4, "a, a/b, a/c and the trailer");
        assert!(text.find("a\0") < text.find("a/b\0"));
        assert!(text.contains("hello") && !text.contains("twice"));
        assert!(text.contains("TRAILER!!!"));
        Ok(())
    }

    #[test]
    fn both_forms_of_lines_of_ldd_are_read() {
        let text = "\tlinux-vdso.so.1 (0x7)\n\tlibc.so.6 => /lib/libc.so.6 (0x7)\n\t/lib64/ld.so (0x7)\n";
        assert_eq!(libraries_in(text), [PathBuf::from("/lib/libc.so.6"), PathBuf::from("/lib64/ld.so")]);
    }
}
