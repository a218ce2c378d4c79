//! Printing for people. Much of what is printed came from hosts and from other people: names, facts, notes, logs, output of programs. A
//! terminal would obey control characters in it (titles, colours, cursor movement, answers to the keyboard), and characters that change the
//! direction of writing would show another text. So on a terminal they are escaped; a pipe or a file gets all bytes as they are.
//!
//! **Invariant: nothing else writes to standard output or standard error** (a tidy test checks that), except programs that draw a screen.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::failure::{Failure, FailureContext, FailureKind};

/// Whether the last line that readers of standard error see is a program's, and has not ended. A message of muster's own then
/// begins on a line of its own.
static LINE_IS_OPEN: AtomicBool = AtomicBool::new(false);

fn note_line(bytes: &[u8]) {
    if let Some(last) = bytes.last() {
        LINE_IS_OPEN.store(*last != b'\n', Ordering::Relaxed);
    }
}

/// Writes to standard output at once: as it is, or shown as text where that is a terminal.
///
/// # Errors
/// If it cannot be written. That nobody reads any more (`… | head`) ends a verb without a word: whoever closed the pipe
/// has seen enough.
pub fn out(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        note_line(bytes);
    }
    let shown = if out.is_terminal() { shown(bytes) } else { Cow::Borrowed(bytes) };
    match out.write_all(&shown).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(FailureKind::Failed)),
        result => result.trying("standard output"),
    }
}

/// The same of a text that was made here and has colours, which stay. The caller has asked whether this is a terminal.
///
/// # Errors
/// As [`out`].
pub fn out_in_colours(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(&escaped(text.as_bytes(), true)).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(FailureKind::Failed)),
        result => result.trying("standard output"),
    }
}

/// The same to standard error, on a line of its own. It is the last resort: if it is gone there is nobody to tell.
pub fn err(text: &str) {
    if LINE_IS_OPEN.swap(false, Ordering::Relaxed) {
        write_err(b"\n");
    }
    write_err(text.as_bytes());
}

/// The same of what a program has written, which may end within a line.
pub fn err_bytes(bytes: &[u8]) {
    note_line(bytes);
    write_err(bytes);
}

fn write_err(bytes: &[u8]) {
    let mut err = io::stderr().lock();
    let shown = if err.is_terminal() { shown(bytes) } else { Cow::Borrowed(bytes) };
    let _ = err.write_all(&shown);
}

/// Shows how far something is in place of what was shown of it before, if standard error is a terminal.
pub fn progress(words: &str) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let _ = err.write_all(b"\r").and_then(|()| err.write_all(&shown(words.as_bytes())));
    }
}

/// Standard error for a log, whose lines have colours of their own. What cannot be written is lost: a log that nobody
/// reads any more must not end what writes it, and who is told of a failure here would say so on standard error.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut err = io::stderr().lock();
        let _ = match err.is_terminal() {
            true => err.write_all(&escaped(bytes, true)),
            false => err.write_all(bytes),
        };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().lock().flush();
        Ok(())
    }
}

/// Bytes as a terminal may show them: lines and tabs stay, any other control character, whatever turns the direction of writing, and what is
/// no UTF-8 are written out as text.
#[must_use]
pub fn shown(bytes: &[u8]) -> Cow<'_, [u8]> {
    escaped(bytes, false)
}

/// The same of a text that was made here and has colours, which stay.
#[must_use]
pub fn shown_in_colours(text: &str) -> String {
    String::from_utf8_lossy(&escaped(text.as_bytes(), true)).into_owned()
}

fn escaped(bytes: &[u8], with_colours: bool) -> Cow<'_, [u8]> {
    if bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t')) {
        return Cow::Borrowed(bytes);
    }
    let mut all = Vec::with_capacity(bytes.len() + 16);
    for piece in bytes.utf8_chunks() {
        let mut text = piece.valid();
        while let Some(one) = text.chars().next() {
            let colours = if with_colours { colours(text) } else { 0 };
            let taken = colours.max(one.len_utf8());
            let (now, rest) = text.split_at(taken);
            // The end of a line as some programs write it.
            let is_line_end = one == '\r' && rest.starts_with('\n');
            if colours == 0 && !is_line_end && is_obeyed(one) {
                all.extend(format!("\\u{:04x}", u32::from(one)).bytes());
            } else {
                all.extend_from_slice(now.as_bytes());
            }
            text = rest;
        }
        for byte in piece.invalid() {
            all.extend(format!("\\x{byte:02x}").bytes());
        }
    }
    Cow::Owned(all)
}

/// Whether a terminal does something else with a character than to show it.
fn is_obeyed(one: char) -> bool {
    match one {
        '\n' | '\t' => false,
        // Marks, embeddings, overrides and isolates of direction; separators of lines and paragraphs; tags, which nothing shows.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{feff}' => true,
        '\u{e0000}'..='\u{e007f}' => true,
        other => other.is_control(),
    }
}

/// How long the sequence is that a text begins with, if it is one that only changes colours.
fn colours(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("\x1b[") else { return 0 };
    let end = rest.bytes().position(|byte| !matches!(byte, b'0'..=b'9' | b';'));
    match end {
        Some(end) if rest.as_bytes().get(end) == Some(&b'm') => end + 3,
        _ => 0,
    }
}

/// A terminal without echo, for something secret that is typed, until this is dropped.
#[derive(Debug)]
pub struct SilentTerminal(Termios);

impl SilentTerminal {
    /// Switches the echo of standard input off.
    ///
    /// # Errors
    /// If standard input is no terminal.
    pub fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        quiet.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for SilentTerminal {
    fn drop(&mut self) {
        // If the terminal is gone, nothing needs to be restored.
        let _ = tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], wanted: &str) {
        assert_eq!(String::from_utf8_lossy(&shown(bytes)), wanted);
    }

    #[test]
    fn text_stays_as_it_is() {
        for text in ["", "plain\n\ttext\r\nmore\n", "Grüße, 世界 👋\n", "100 %"] {
            check(text.as_bytes(), text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        check(b"\x1b]0;title\x07\x1b[2J", "\\u001b]0;title\\u0007\\u001b[2J");
        check("\u{9b}31m\u{7f}".as_bytes(), "\\u009b31m\\u007f");
        check("a\u{202e}b\u{2066}c\u{200f}".as_bytes(), "a\\u202eb\\u2066c\\u200f");
        check(b"over\rwritten\x08\x08", "over\\u000dwritten\\u0008\\u0008");
        check(b"\xff\xc2", "\\xff\\xc2");
        // A character of two bytes that comes in two pieces.
        check(b"\x9b31m", "\\x9b31m");
        check(b"\x1b[31mred", "\\u001b[31mred");
    }

    #[test]
    fn only_own_colours_are_kept() {
        assert_eq!(shown_in_colours("\x1b[1;31mred\x1b[0m\x1b[2J"), "\x1b[1;31mred\x1b[0m\\u001b[2J");
        assert_eq!(shown_in_colours("\x1b[?25l\x1b["), "\\u001b[?25l\\u001b[");
        assert_eq!(shown_in_colours("ü\x1bm"), "ü\\u001bm");
    }
}
