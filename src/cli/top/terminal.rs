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

/// The other screen, so that what was on this one comes back; and no cursor.
const TAKE: &str = "\x1b[?1049h\x1b[?25l";
const GIVE_BACK: &str = "\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not tell it.
const SIZE: (u16, u16) = (80, 24);

/// How the terminal was; nothing while it is not ours.
static BEFORE: Mutex<Option<SavedTerminal>> = Mutex::new(None);

#[derive(Debug)]
struct SavedTerminal {
    /// How keys came, if they come from a terminal.
    keys: Option<Termios>,
}

/// What somebody wants, or what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalInput {
    /// The end.
    Quit,
    /// Another order.
    Sort(TopSort),
    /// New values, now.
    Now,
    /// A key without a meaning, or another size: it has to be drawn again.
    Other,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Terminal {
    /// Opened anew, so that not to wait for it changes nothing for others. It is no pipe, but is read like one.
    keys: Option<Receiver>,
    resized: Signal,
    colours: bool,
}

impl Terminal {
    /// Takes the screen.
    ///
    /// # Errors
    /// If it cannot be had.
    pub(super) fn take() -> io::Result<Self> {
        restore_before_panics();
        // As long as there is something to give back, this gives it back.
        let mut terminal = Self {
            keys: None,
            resized: signal(SignalKind::window_change())?,
            colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let stdin = io::stdin();
        let keys = tcgetattr(stdin.as_fd()).ok();
        if let Some(before) = &keys {
            let mut silent = before.clone();
            // Ctrl-C and Ctrl-Z mean what they always mean.
            silent.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            silent.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
            silent.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            *lock() = Some(SavedTerminal { keys: Some(before.clone()) });
            tcsetattr(stdin.as_fd(), SetArg::TCSANOW, &silent)?;
            let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open("/proc/self/fd/0");
            // Who cannot be read has no keys; Ctrl-C there is still.
            terminal.keys = file.and_then(Receiver::from_file_unchecked).ok();
        } else {
            *lock() = Some(SavedTerminal { keys: None });
        }
        write(TAKE)?;
        Ok(terminal)
    }

    /// What there is room for.
    pub(super) fn look(&self) -> ScreenSize {
        let size = terminal_size::terminal_size_of(io::stdout()).map(|(width, height)| (width.0, height.0));
        let (width, height) = size.filter(|(width, height)| *width > 0 && *height > 0).unwrap_or(SIZE);
        ScreenSize { width: width.into(), height: Some(height.into()), colours: self.colours }
    }

    /// Shows a picture in the place of the last one.
    pub(super) fn draw(&self, text: &str) -> io::Result<()> {
        // The last line has no break behind it, or the first would leave at the top. What was there is removed line by line:
        // a screen that is cleared first flickers.
        let text = shown_in_colours(text.strip_suffix('\n').unwrap_or(text)).replace('\n', "\x1b[K\n");
        write(&format!("\x1b[H{text}\x1b[K\x1b[J"))
    }

    /// Waits for a key, or for another size. Cancel-safe.
    pub(super) async fn input(&mut self) -> TerminalInput {
        let keys = self.keys.as_mut();
        let key = async {
            let mut key = [0];
            match keys {
                // Nothing comes from a terminal that is gone.
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

/// Gives the screen back, if it is ours. There is nobody to tell if that fails.
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
