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
    supervise::Supervisor,
};

/// How long a program has to be up before its next process is made. One that ends sooner is in no hurry.
const AFTER_MS: u64 = 1_000;

/// A process that waits, with the token that it will speak with.
#[derive(Debug)]
pub(crate) struct NextProcess {
    pending: PendingChild,
    token: Option<ChannelToken>,
}

impl NextProcess {
    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        self.pending.main().pid
    }
}

impl Supervisor {
    /// Starts the program, which runs only once it is recorded.
    pub(crate) fn start(&mut self) -> Result<(), SpawnError> {
        let waited = self.body.next.is_some();
        match self.start_one() {
            // It may have been killed while it waited.
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
        if let Err(error) = self.record(false) {
            self.state.main = None;
            pending.abandon();
            return Err(error.into());
        }
        match pending.go() {
            Ok(program) => {
                self.body.live(program);
                self.untold = true;
                self.want_next();
                Ok(())
            }
            Err(failure) => {
                self.state.main = None;
                self.unrecorded = true;
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

    /// A next process will be wanted, but not yet.
    pub(crate) fn want_next(&mut self) {
        let wanted = self.body.next.is_none() && self.life.starts_again() && self.body.has_room_to_wait();
        self.next_at_ms = wanted.then(|| self.now_ms() + AFTER_MS);
    }

    /// Makes it. If that cannot be, the program is started without it.
    pub(crate) fn prepare_next(&mut self) {
        self.next_at_ms = None;
        // What is frozen would not get anywhere. It is wanted again when it is thawed.
        if self.life.is_up() && self.life.starts_again() && !self.state.frozen && self.body.next.is_none() {
            self.body.next = self.fork().ok();
        }
    }

    /// Ends it: it is not wanted any more.
    pub(crate) fn dismiss_next(&mut self) {
        self.next_at_ms = None;
        // From here on it is a child like any other, which is gone before the program is.
        if let Some(next) = self.body.next.take() {
            next.pending.dismiss();
        }
    }

    /// A child has been reaped, which may have been that one.
    pub(crate) fn reaped_next(&mut self, pid: i32) {
        self.body.next.take_if(|next| next.pid() == pid);
    }
}
