//! Verbs that take the screen of a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::Pid,
};

use crate::fleet::{Fleet, eventually};

/// A verb on a terminal of 80 by 24.
pub(crate) struct Screen {
    verb: Child,
    master: File,
    slave: OwnedFd,
    shown: Arc<Mutex<String>>,
}

impl Screen {
    pub(crate) fn start(fleet: &Fleet, args: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = fleet.home.command();
        command.args(args).stdin(end()).stdout(end()).stderr(end());
        let verb = command.spawn().unwrap();
        let (master, shown) = (File::from(pty.master), Arc::new(Mutex::new(String::new())));
        let (mut reader, collected) = (master.try_clone().unwrap(), shown.clone());
        // It ends with the last of those who hold the other end, at the latest with the test.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                collected.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { verb, master, slave: pty.slave, shown }
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, words: &str) {
        eventually(words, || {
            let shown = self.shown.lock().unwrap();
            if shown.contains(words) { Ok(()) } else { Err(format!("{shown:?}")) }
        });
    }

    pub(crate) fn press(&mut self, key: &str) {
        self.master.write_all(key.as_bytes()).unwrap();
    }

    pub(crate) fn is_silent(&self) -> bool {
        !tcgetattr(self.slave.as_fd()).unwrap().local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.verb.id().cast_signed()), signal).unwrap();
    }

    /// Waits for its end, with this code: the terminal is as it was.
    #[track_caller]
    pub(crate) fn expect_given_back(mut self, code: i32) {
        assert_eq!(self.verb.wait().unwrap().code(), Some(code));
        self.wait_for("\x1b[?25h\x1b[?1049l");
        let flags = tcgetattr(self.slave.as_fd()).unwrap().local_flags;
        assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO), "{flags:?}");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.verb.kill();
        let _ = self.verb.wait();
    }
}
