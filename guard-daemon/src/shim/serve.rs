//! The shim's life once the fence stands: between guardctl, guardd and the agent's init.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SendFlags, SocketFlags},
    process::{Signal, WaitId, WaitIdOptions},
};

use super::{
    ShimError,
    asks::Asks,
    init::Agent,
    listener::{Listener, notes::Notes, object::View},
    reads::{self, Reader, Reads},
    report::Reports,
    setup::Handed,
};
use crate::{
    launch::wire::{self, ClientEvent, DaemonEvent, Exited, FromInit, InitEvent, ToClient, ToCommand},
    sandbox::privilege,
};

/// How long a command may go on after its caller has gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves one agent to its end.
pub(super) fn serve(control: OwnedFd, handed: Handed, agent: Agent) -> Result<(), ShimError> {
    let Handed { client, reconnect, sandbox, descriptors, cgroup, .. } = handed;
    // The command has these; pipes must end when it closes them.
    drop((descriptors, cgroup));
    let Agent {
        init,
        process,
        pid,
        started,
        listener,
        terminal,
        reads,
        watched,
        root,
        mounts,
        worktree,
        identity,
        since,
    } = agent;
    privilege::limit_capabilities()?;
    privilege::no_new_privileges()?;
    privilege::become_identity(&identity)?;
    privilege::hide_memory()?;

    let answers = control.try_clone().map_err(ShimError::step("keeping the line to guardd"))?;
    let reports = Arc::new(Reports::new(control));
    let asks = Arc::new(Asks::new(Arc::clone(&reports)));
    asks.hear(answers).map_err(ShimError::step("starting the thread for answers"))?;
    let view = Arc::new(View::new(root, mounts));
    let notes = Notes::start(Arc::clone(&view), Arc::clone(&reports), &worktree)
        .map_err(ShimError::step("starting the thread for notes"))?;
    let notes = Arc::new(notes);
    let mut reading = None;
    if let Some(group) = reads {
        // Its processes may go into groups beside the first one's.
        let cgroup = reads::cgroup_of(pid).and_then(|path| Some(path.rsplit_once('/')?.0.to_owned()));
        let reader =
            Reader { group, watched, worktree: worktree.clone(), cgroup, reports: Arc::clone(&reports) };
        reading = Some(Reads::start(reader, &process).map_err(ShimError::step("starting the reader"))?);
    }
    if let Some(listener) = listener {
        Listener::new(listener, view, worktree, since, Arc::clone(&notes), Arc::clone(&asks))
            .serve_on_a_thread()
            .map_err(ShimError::step("starting the listener"))?;
    }
    reports.send(DaemonEvent::Started(pid));
    let mut serving = Serving {
        client: Some(client),
        init: Some(init),
        process,
        reports,
        asks,
        notes,
        reading,
        pid,
        ended: None,
        deadline: None,
    };
    let master: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
    let event = ToClient { event: Some(ClientEvent::Started(started)) };
    if let Some(client) = &serving.client
        && wire::send(client, &event, &master, SendFlags::empty()).is_err()
    {
        serving.caller_left();
    }
    // guardctl has the only one: when it goes, the agent's terminal hangs up.
    drop(terminal);
    drop(sandbox);
    serving.until_the_end(&reconnect);
    Ok(())
}

struct Serving {
    client: Option<OwnedFd>,
    init: Option<OwnedFd>,
    process: OwnedFd,
    reports: Arc<Reports>,
    asks: Arc<Asks>,
    notes: Arc<Notes>,
    reading: Option<Reads>,
    pid: u32,
    ended: Option<Exited>,
    /// When an agent without a caller is ended.
    deadline: Option<Instant>,
}

impl Serving {
    fn until_the_end(&mut self, reconnect: &OwnedFd) {
        loop {
            let mut ready =
                vec![PollFd::new(&self.process, PollFlags::IN), PollFd::new(reconnect, PollFlags::IN)];
            let mut add = |descriptor| {
                ready.push(PollFd::new(descriptor, PollFlags::IN));
                ready.len() - 1
            };
            let init = self.init.as_ref().map(&mut add);
            let client = self.client.as_ref().map(&mut add);
            let timeout = self.deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
                    tv_nsec: left.subsec_nanos().into(),
                }
            });
            match poll(&mut ready, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Out of kernel memory: the next round may have some.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            let came = |position: Option<usize>| {
                position.is_some_and(|position| !ready[position].revents().is_empty())
            };
            let (init, client) = (came(init), came(client));
            let (over, knocked) = (came(Some(0)), came(Some(1)));
            if init {
                self.hear_init();
            }
            if client {
                self.hear_client();
            }
            if knocked {
                self.let_in(reconnect);
            }
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.deadline = None;
                let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
            }
            // The init's last word may still wait in its socket.
            if over && !init {
                return self.over();
            }
        }
    }

    fn hear_init(&mut self) {
        let Some(init) = &self.init else { return };
        match wire::receive::<FromInit>(init) {
            Ok(Some(packet)) => match packet.message.event {
                Some(InitEvent::Stopped(signal)) => self.tell(ClientEvent::Stopped(signal)),
                Some(InitEvent::Exited(ended)) => self.ended = Some(ended),
                _ => {}
            },
            Ok(None) | Err(_) => self.init = None,
        }
    }

    fn hear_client(&mut self) {
        let Some(client) = &self.client else { return };
        match wire::receive::<ToCommand>(client) {
            Ok(Some(packet)) => self.signal(packet.message.signal),
            Ok(None) | Err(_) => self.caller_left(),
        }
    }

    /// Nobody waits for the command any more: it hears a hangup as it would from a terminal, and has a moment to end.
    fn caller_left(&mut self) {
        self.client = None;
        self.signal(libc::SIGHUP.unsigned_abs());
        self.signal(libc::SIGCONT.unsigned_abs());
        self.deadline = Some(Instant::now() + LAST_WORDS);
    }

    fn signal(&self, signal: u32) {
        if let Some(init) = &self.init {
            // An init that has ended has no command to signal.
            let _ = wire::send(init, &ToCommand { signal }, &[], SendFlags::empty());
        }
    }

    fn tell(&mut self, event: ClientEvent) {
        if let Some(client) = &self.client
            && wire::send(client, &ToClient { event: Some(event) }, &[], SendFlags::empty()).is_err()
        {
            self.caller_left();
        }
    }

    /// A guardd that comes back; only the uid that could make the socket can reach it.
    fn let_in(&self, reconnect: &OwnedFd) {
        if let Ok(control) = rustix::net::accept_with(reconnect, SocketFlags::CLOEXEC) {
            // Without a thread for its answers this guardd is told of acts, and none that waits gets a yes.
            let _ = control.try_clone().and_then(|answers| self.asks.hear(answers));
            self.reports.replace(control);
            self.reports.send(DaemonEvent::Started(self.pid));
        }
    }

    /// Nothing of the agent is left: its init was the last.
    fn over(&mut self) {
        // Nobody else would reap it.
        let _ = rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
        // Ended from outside, and the rest of it with it.
        let killed = Exited { status: libc::SIGKILL.unsigned_abs(), left: 0 };
        let ended = self.ended.take().unwrap_or(killed);
        if let Some(client) = self.client.take() {
            let event = ToClient { event: Some(ClientEvent::Exited(ended.status)) };
            // A caller that has gone does not hear it.
            let _ = wire::send(client, &event, &[], SendFlags::empty());
        }
        self.notes.finish();
        if let Some(reading) = &mut self.reading {
            reading.finish();
        }
        self.reports.finish(DaemonEvent::Ended(ended));
    }
}
