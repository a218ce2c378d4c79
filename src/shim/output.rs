//! Copies a program's output from the FIFOs that it writes to into files.
//!
//! A FIFO and not a pipe, because it has a name by which another shim finds it if this one is killed; and
//! the program holds it for reading too, so that it gets no SIGPIPE while there is no reader.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use muster_shim::{Launch, OutputMode, files};
use nix::{
    fcntl::OFlag,
    sys::stat::Mode,
    unistd::{Uid, fchown, mkfifo},
};

use crate::log::ProgramLog;

/// Size of one read. A larger buffer is hardly faster, and its memory is never returned.
const PIECE_BYTES: usize = 8 * 1024;
/// Longest amount that is read when a program is drained, before other work gets a turn: the largest pipe that users
/// other than root can have, so at least everything that was in it.
const DRAIN_MAX_BYTES: usize = 1024 * 1024;

/// Where the output of a stream goes.
#[derive(Debug)]
enum OutputSink {
    Log(ProgramLog),
    Capture { file: File, len_bytes: u64, max_bytes: u64 },
    Nowhere,
}

/// A FIFO and its destination.
#[derive(Debug)]
struct OutputStream {
    path: PathBuf,
    fifo: File,
    sink: OutputSink,
    /// No process has it open for writing.
    ended: bool,
    dropped_bytes: u64,
}

/// All output of a program: one stream for a log, two for captured output.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    streams: Vec<OutputStream>,
    piece: Box<[u8]>,
}

impl ProgramOutput {
    /// Creates new FIFOs; captured output starts empty, a log is continued.
    pub(crate) fn create(launch: &Launch) -> io::Result<Self> {
        for (name, _) in sources(&launch.output) {
            remove_if_there(&fifo_path(name))?;
            if matches!(launch.output, OutputMode::Capture(_)) {
                remove_if_there(Path::new(name))?;
            }
        }
        Self::open(launch, (0, 0))
    }

    /// Opens the FIFOs of an earlier shim, whose output is continued.
    pub(crate) fn open(launch: &Launch, dropped_bytes: (u64, u64)) -> io::Result<Self> {
        let mut streams = Vec::new();
        for ((name, to), dropped_bytes) in sources(&launch.output).into_iter().zip([dropped_bytes.0, dropped_bytes.1]) {
            let Some(to) = to else {
                streams.push(OutputStream::to_nowhere()?);
                continue;
            };
            let path = fifo_path(name);
            let owner = match &launch.inside {
                Some(inside) => Some(inside.owner),
                None => launch.user.as_ref().map(|user| user.uid),
            };
            let owner = owner.map(Uid::from_raw);
            let fifo = open_fifo(&path, owner)?;
            let sink = OutputSink::open(Path::new(name), to)?;
            streams.push(OutputStream { path, fifo, sink, ended: false, dropped_bytes });
        }
        Ok(Self { streams, piece: vec![0; PIECE_BYTES].into_boxed_slice() })
    }

    /// The write ends for the program's standard output and error. A child must hold them before they are closed here;
    /// otherwise the output seems to end.
    pub(crate) fn writers(&mut self) -> io::Result<[File; 2]> {
        let mut files = Vec::with_capacity(2);
        for stream in &mut self.streams {
            stream.ended = false;
            files.push(OpenOptions::new().read(true).write(true).open(&stream.path)?);
        }
        let stdout = files.remove(0);
        let stderr = files.pop().map_or_else(|| stdout.try_clone(), Ok)?;
        Ok([stdout, stderr])
    }

    /// The descriptors to poll. A FIFO without writers is left out, because poll would always return for it.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.streams.iter().filter(|stream| !stream.ended).map(|stream| stream.fifo.as_fd())
    }

    /// Reads once from each stream.
    pub(crate) fn pump(&mut self) {
        for stream in &mut self.streams {
            stream.pump(&mut self.piece);
        }
    }

    /// Reads all available output of each stream.
    pub(crate) fn drain(&mut self) {
        for stream in &mut self.streams {
            let mut read_bytes = 0;
            while let Some(bytes) = stream.pump(&mut self.piece).filter(|_| read_bytes < DRAIN_MAX_BYTES) {
                read_bytes += bytes;
            }
        }
    }

    /// Whether all output has been read to its end.
    pub(crate) fn ended(&self) -> bool {
        self.streams.iter().all(|stream| stream.ended)
    }

    /// The lengths of the files of captured output.
    pub(crate) fn lens_bytes(&self) -> [u64; 2] {
        self.each(|stream| match &stream.sink {
            OutputSink::Capture { len_bytes, .. } => *len_bytes,
            OutputSink::Log(_) | OutputSink::Nowhere => 0,
        })
    }

    /// Number of dropped bytes.
    pub(crate) fn dropped_bytes(&self) -> (u64, u64) {
        self.each(|stream| stream.dropped_bytes).into()
    }

    /// Syncs captured output to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.streams.iter().try_for_each(|stream| match &stream.sink {
            OutputSink::Capture { file, len_bytes, .. } if *len_bytes > 0 => file.sync_data(),
            _ => Ok(()),
        })
    }

    /// From now on, drops all output; reading only keeps writers from blocking.
    pub(crate) fn discard(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.sink = OutputSink::Nowhere);
    }

    /// Writes a line of the shim's own into a log.
    pub(crate) fn note(&mut self, line: &str) {
        if let Some(OutputStream { sink: OutputSink::Log(log), .. }) = self.streams.first_mut() {
            let _ = log.write(format!("muster-shim: {line}\n").as_bytes());
        }
    }

    fn each(&self, value: impl Fn(&OutputStream) -> u64) -> [u64; 2] {
        [0, 1].map(|index| self.streams.get(index).map_or(0, &value))
    }
}

impl OutputStream {
    /// A dropped stream: the program writes to `/dev/null` itself, and there is nothing to read.
    fn to_nowhere() -> io::Result<Self> {
        let path = PathBuf::from("/dev/null");
        let fifo = File::open(&path)?;
        Ok(Self { path, fifo, sink: OutputSink::Nowhere, ended: false, dropped_bytes: 0 })
    }

    /// Reads once; `None` if nothing is available.
    fn pump(&mut self, piece: &mut [u8]) -> Option<usize> {
        if self.ended {
            return None;
        }
        match self.fifo.read(piece) {
            Ok(0) => self.ended = true,
            Ok(len) => {
                self.dropped_bytes += self.sink.write(&piece[..len]);
                return Some(len);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // A FIFO that failed once stays unreadable.
            Err(_) => self.ended = true,
        }
        None
    }
}

impl OutputSink {
    fn open(path: &Path, to: SinkKind) -> io::Result<Self> {
        match to {
            SinkKind::Log { max_bytes, keep, max_age_ms } => {
                Ok(Self::Log(ProgramLog::open(path, max_bytes, keep, max_age_ms)?))
            }
            SinkKind::File { max_bytes } => {
                let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
                let len_bytes = file.metadata()?.len();
                Ok(Self::Capture { file, len_bytes, max_bytes })
            }
        }
    }

    /// Writes what fits, and returns how many bytes do not: a limit or a full disk must not block the program.
    fn write(&mut self, bytes: &[u8]) -> u64 {
        match self {
            Self::Log(log) => log.write(bytes).err().unwrap_or(0),
            Self::Nowhere => bytes.len() as u64,
            Self::Capture { file, len_bytes, max_bytes } => {
                let room = usize::try_from(max_bytes.saturating_sub(*len_bytes)).unwrap_or(usize::MAX);
                let mut kept = &bytes[..bytes.len().min(room)];
                let mut dropped_bytes = (bytes.len() - kept.len()) as u64;
                while !kept.is_empty() {
                    match file.write(kept) {
                        Ok(written) if written > 0 => {
                            *len_bytes += written as u64;
                            kept = &kept[written..];
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Ok(_) | Err(_) => {
                            dropped_bytes += kept.len() as u64;
                            break;
                        }
                    }
                }
                dropped_bytes
            }
        }
    }
}

/// The kind of file that a stream goes to.
#[derive(Clone, Copy, Debug)]
enum SinkKind {
    Log { max_bytes: u64, keep: u32, max_age_ms: Option<u64> },
    File { max_bytes: u64 },
}

/// The streams of a program and the names of their files; `None` for a dropped stream.
fn sources(output: &OutputMode) -> Vec<(&'static str, Option<SinkKind>)> {
    match *output {
        OutputMode::Log { max_bytes, keep, max_age_ms } => {
            vec![(files::LOG, Some(SinkKind::Log { max_bytes, keep, max_age_ms }))]
        }
        OutputMode::Capture(capture) => {
            let to = capture.limits_bytes().map(|limit| limit.map(|max_bytes| SinkKind::File { max_bytes }));
            [files::STDOUT, files::STDERR].into_iter().zip(to).collect()
        }
    }
}

fn fifo_path(name: &str) -> PathBuf {
    format!("{name}.fifo").into()
}

/// Opens a FIFO for reading, and creates it if it is missing. It belongs to the program's user, who could not open
/// `/dev/stdout` otherwise.
fn open_fifo(path: &Path, owner: Option<Uid>) -> io::Result<File> {
    if !path.try_exists()? {
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
    }
    let fifo = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if let Some(owner) = owner {
        // Only root can change the owner, and without root the program's user is the same.
        let _ = fchown(&fifo, Some(owner), None);
    }
    Ok(fifo)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
