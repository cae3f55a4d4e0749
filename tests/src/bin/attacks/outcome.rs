//! What came of an act, and how it is said.

use std::{io, process::ExitCode};

use anyhow::Result;

/// How an act ended; an error is neither, it means that the attack itself is broken here.
pub(crate) type Act = Result<Outcome>;

/// What came of it.
pub(crate) enum Outcome {
    /// The effect was seen.
    Worked(String),
    /// The kernel said no, or nothing came of it.
    Refused(i32, String),
}

/// The effect was seen.
pub(crate) fn worked(detail: impl Into<String>) -> Act {
    Ok(Outcome::Worked(detail.into()))
}

/// A step of the act was refused.
pub(crate) fn refused(step: &str, error: &io::Error) -> Act {
    match error.raw_os_error() {
        Some(errno) => Ok(Outcome::Refused(errno, step.to_owned())),
        // Timeouts of the standard library carry no number.
        None if error.kind() == io::ErrorKind::TimedOut => {
            Ok(Outcome::Refused(libc::ETIMEDOUT, step.to_owned()))
        }
        None => Err(anyhow::anyhow!("{step}: {error}")),
    }
}

/// Every step said yes and yet the effect is not there.
pub(crate) fn no_effect(detail: impl Into<String>) -> Act {
    Ok(Outcome::Refused(libc::ENODATA, detail.into()))
}

/// Takes a step of the act: its value, or the act ends as refused.
macro_rules! step {
    ($name:expr, $call:expr) => {
        match $call {
            Ok(value) => value,
            Err(error) => return $crate::outcome::refused($name, &std::io::Error::from(error)),
        }
    };
}
pub(crate) use step;

/// The result of a raw system call.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Says it, and chooses the exit status.
pub(crate) fn report(act: Act) -> ExitCode {
    match act {
        Ok(Outcome::Worked(detail)) => {
            println!("worked {detail}");
            ExitCode::SUCCESS
        }
        Ok(Outcome::Refused(errno, step)) => {
            println!("refused {} {step}", name(errno));
            ExitCode::from(10)
        }
        Err(error) => {
            eprintln!("attacks: {error:#}");
            ExitCode::from(20)
        }
    }
}

/// The names of the errors that fences give.
fn name(errno: i32) -> String {
    let known = match errno {
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ENOENT => "ENOENT",
        libc::ENOSYS => "ENOSYS",
        libc::EROFS => "EROFS",
        libc::ESRCH => "ESRCH",
        libc::EXDEV => "EXDEV",
        libc::EBUSY => "EBUSY",
        libc::EINVAL => "EINVAL",
        libc::EIO => "EIO",
        libc::ENOTTY => "ENOTTY",
        libc::ENXIO => "ENXIO",
        libc::ENODEV => "ENODEV",
        libc::ENODATA => "ENODATA",
        libc::ENOTDIR => "ENOTDIR",
        libc::EEXIST => "EEXIST",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ETIMEDOUT | libc::EAGAIN => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        other => return format!("E{other}"),
    };
    known.to_owned()
}
