//! Somebody who watches what waits and answers it, as a person with `guardctl` does.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::host::{Host, output};

/// A `guardctl approvals watch`; it ends when this is dropped.
pub struct Approver {
    watch: Child,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl Approver {
    /// Watches; says nothing by itself.
    ///
    /// # Errors
    /// guardctl does not start, or guard-core does not hear it.
    pub fn watch(host: &Host) -> Result<Self> {
        Self::start(host, |_| None)
    }

    /// Watches, and answers each act with what the function says of it: `yes`, `no`, and words after it; nothing leaves it waiting.
    ///
    /// # Errors
    /// As [`Approver::watch`].
    pub fn start(
        host: &Host,
        answers: impl Fn(&Value) -> Option<Vec<&'static str>> + Send + 'static,
    ) -> Result<Self> {
        let mut command = host.guardctl(&["--json", "approvals", "watch"]);
        let mut watch = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(watch.stdout.take().context("no stdout")?).lines();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&seen);
        let socket = host.socket().display().to_string();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
                own.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
                let id = event["waiting"]["id"].to_string();
                if event["event"] == "asked"
                    && let Some(words) = answers(&event["waiting"])
                {
                    let mut answer = std::process::Command::new(crate::programs().join("guardctl"));
                    answer.args(["--socket", &socket, "approvals", "answer", &id]).args(words);
                    // What does not get there is a test's failure soon enough.
                    let _ = output(&mut answer);
                }
            }
        });
        let approver = Self { watch, seen };
        approver.wait_for(|event| event["event"] == "watching")?;
        Ok(approver)
    }

    /// What was told so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Value> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// With all that was told, when it does not come.
    pub fn wait_for(&self, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let seen = self.seen();
            if let Some(event) = seen.iter().find(|event| fits(event)) {
                return Ok(event.clone());
            }
            if Instant::now() > until {
                bail!("it was not told; this was: {seen:#?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Approver {
    fn drop(&mut self) {
        // It has ended already, or is not wanted any more.
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}
