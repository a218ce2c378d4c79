//! The terminal in full-screen mode.
//!
//! **Invariant: the terminal is restored on every way out**: when this is dropped (quit, error, interrupt), and
//! before a panic is printed.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    sync::{Mutex, Once, PoisonError},
};

use muster_base::terminal::shown_in_colours;
use nix::{
    fcntl::OFlag,
    sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr},
};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe::Receiver,
    signal::unix::{Signal, SignalKind, signal},
};

use super::{rows::TopSort, screen::ScreenSize};

/// Switches to the alternate screen, so that the normal one is restored later, and hides the cursor.
const TAKE: &str = "\x1b[?1049h\x1b[?25l";
const GIVE_BACK: &str = "\x1b[?25h\x1b[?1049l";
/// Size of a terminal that does not report it.
const SIZE: (u16, u16) = (80, 24);

/// The original state of the terminal; `None` while it is not in use.
static BEFORE: Mutex<Option<SavedTerminal>> = Mutex::new(None);

#[derive(Debug)]
struct SavedTerminal {
    /// The original settings of its input, if that is a terminal.
    keys: Option<Termios>,
}

/// Input of the user, or another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalInput {
    /// The end.
    Quit,
    /// Sort by another column.
    Sort(TopSort),
    /// Update now.
    Now,
    /// Another key, or a new size: draw again.
    Other,
}

/// The terminal while it is in use; see the module.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Opened separately, so that non-blocking mode does not affect other processes. It is not a pipe, but is read like
    /// one.
    keys: Option<Receiver>,
    resized: Signal,
    colours: bool,
}

impl Terminal {
    /// Switches the screen.
    ///
    /// # Errors
    /// If that fails.
    pub(crate) fn take() -> io::Result<Self> {
        restore_before_panics();
        // From here on, dropping it restores what was changed.
        let mut terminal = Self {
            keys: None,
            resized: signal(SignalKind::window_change())?,
            colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let stdin = io::stdin();
        let keys = tcgetattr(stdin.as_fd()).ok();
        if let Some(before) = &keys {
            let mut silent = before.clone();
            // Ctrl-C and Ctrl-Z keep their meaning.
            silent.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            silent.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
            silent.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            *lock() = Some(SavedTerminal { keys: Some(before.clone()) });
            tcsetattr(stdin.as_fd(), SetArg::TCSANOW, &silent)?;
            let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open("/proc/self/fd/0");
            // If it cannot be read there are no keys; Ctrl-C still works.
            terminal.keys = file.and_then(Receiver::from_file_unchecked).ok();
        } else {
            *lock() = Some(SavedTerminal { keys: None });
        }
        write(TAKE)?;
        Ok(terminal)
    }

    /// The available space.
    pub(crate) fn look(&self) -> ScreenSize {
        let size = terminal_size::terminal_size_of(io::stdout()).map(|(width, height)| (width.0, height.0));
        let (width, height) = size.filter(|(width, height)| *width > 0 && *height > 0).unwrap_or(SIZE);
        ScreenSize { width: width.into(), height: Some(height.into()), colours: self.colours }
    }

    /// Replaces the text on the screen.
    pub(crate) fn draw(&self, text: &str) -> io::Result<()> {
        // The last line has no line feed, which would scroll the first one away. Old text is erased line by line,
        // because clearing the screen first causes flicker.
        let text = shown_in_colours(text.strip_suffix('\n').unwrap_or(text)).replace('\n', "\x1b[K\n");
        write(&format!("\x1b[H{text}\x1b[K\x1b[J"))
    }

    /// Waits for a key, or for a new size. Safe to cancel.
    pub(crate) async fn input(&mut self) -> TerminalInput {
        let keys = self.keys.as_mut();
        let key = async {
            let mut key = [0];
            match keys {
                // A closed terminal sends nothing.
                Some(keys) => keys.read(&mut key).await.ok().filter(|count| *count > 0).map(|_| key[0]),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            key = key => key.map_or(TerminalInput::Quit, meaning),
            _ = self.resized.recv() => TerminalInput::Other,
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn meaning(key: u8) -> TerminalInput {
    match key.to_ascii_lowercase() {
        b'q' => TerminalInput::Quit,
        b'c' => TerminalInput::Sort(TopSort::Cpu),
        b'm' => TerminalInput::Sort(TopSort::Memory),
        b'd' => TerminalInput::Sort(TopSort::Disk),
        b'n' => TerminalInput::Sort(TopSort::Network),
        b'h' => TerminalInput::Sort(TopSort::Name),
        b' ' => TerminalInput::Now,
        _ => TerminalInput::Other,
    }
}

fn restore_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}

/// Restores the screen, if it was switched. Errors cannot be reported.
fn give_back() {
    let Some(before) = lock().take() else { return };
    let _ = write(GIVE_BACK);
    if let Some(keys) = before.keys {
        let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, &keys);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<SavedTerminal>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_map_to_input() {
        for (key, wanted) in [
            (b'q', TerminalInput::Quit),
            (b'Q', TerminalInput::Quit),
            (b'm', TerminalInput::Sort(TopSort::Memory)),
            (b'h', TerminalInput::Sort(TopSort::Name)),
            (b' ', TerminalInput::Now),
            (0x1b, TerminalInput::Other),
        ] {
            assert_eq!(meaning(key), wanted, "{key}");
        }
    }
}
