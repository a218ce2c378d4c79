//! Starts the program, and keeps a process ready to be its next one.
//!
//! A process that enters a cgroup waits for the kernel: 6 to 16 ms on two cores with cgroups of v1 (Linux 6.18), while
//! everything else between the end of a process and the next `main` takes 1 or 2. So once a program has proved that
//! it does not end at once, its next process is forked, enters its cgroup, and waits there until it is
//! needed. It holds nothing of the shim's, and ends when the shim does, however that ends.

use std::fs::File;

use muster_shim::ChannelToken;

use crate::{
    program::{PendingChild, SpawnError},
    supervise::{StateRecord, Supervisor, Telling},
};

/// How long a program must run before its next process is prepared. If it ends sooner, a fast restart is not needed.
const AFTER_MS: u64 = 1_000;

/// The waiting process, and the channel token that it will use.
#[derive(Debug)]
pub(crate) struct NextProcess {
    pending: PendingChild,
    token: Option<ChannelToken>,
}

impl NextProcess {
    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pending.main().pid
    }
}

impl Supervisor {
    /// Starts the program; it runs only after it has been recorded.
    pub(crate) fn start(&mut self) -> Result<(), SpawnError> {
        let waited = self.body.next.is_some();
        match self.start_one() {
            // The waiting process may have been killed.
            Err(_) if waited => self.start_one(),
            started => started,
        }
    }

    fn start_one(&mut self) -> Result<(), SpawnError> {
        self.body.begin();
        let NextProcess { mut pending, token } = self.body.next.take().map_or_else(|| self.fork(), Ok)?;
        pending.begin();
        self.renew_channel(token);
        self.state.main = Some(pending.main().clone());
        if let Err(error) = self.write_record(false) {
            self.state.main = None;
            pending.abandon();
            return Err(error.into());
        }
        match pending.go() {
            Ok(program) => {
                self.body.live(program);
                self.telling = Telling::Due;
                self.want_next();
                Ok(())
            }
            Err(failure) => {
                self.state.main = None;
                self.record = StateRecord::Outdated;
                Err(failure)
            }
        }
    }

    fn fork(&mut self) -> Result<NextProcess, SpawnError> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let token = self.token()?;
        let [stdout, stderr] = self.outputs.writers()?;
        let pending = PendingChild::fork(
            self.life.launch(),
            token.as_ref().map(|token| token.0.as_str()),
            [null, stdout, stderr],
        )?;
        Ok(NextProcess { pending, token })
    }

    /// Plans to prepare a next process later.
    pub(crate) fn want_next(&mut self) {
        let wanted = self.body.next.is_none() && self.life.starts_again() && self.body.has_room_to_wait();
        self.next_at_ms = wanted.then(|| self.now_ms() + AFTER_MS);
    }

    /// Prepares the next process. If that fails, the program is started without one.
    pub(crate) fn prepare_next(&mut self) {
        self.next_at_ms = None;
        // In a frozen cgroup the new process would not make progress. It is prepared after thawing.
        if self.life.is_up() && self.life.starts_again() && !self.state.frozen && self.body.next.is_none() {
            self.body.next = self.fork().ok();
        }
    }

    /// Ends the waiting process, which is no longer needed.
    pub(crate) fn dismiss_next(&mut self) {
        self.next_at_ms = None;
        // From now on it is an ordinary child, which ends before the program counts as gone.
        if let Some(next) = self.body.next.take() {
            next.pending.dismiss();
        }
    }

    /// Called when a child was reaped, which may be the waiting process.
    pub(crate) fn reaped_next(&mut self, pid: i32) {
        self.body.next.take_if(|next| next.pid() == pid);
    }
}
