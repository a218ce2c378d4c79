//! Measures the disk usage of containers without a limit by walking their files, because no counter exists.
//!
//! A container's writes lie over its image (overlayfs); a container with a copy of its image counts all of it.
//! For a root in user space (fuse-overlayfs) nothing is known.
//!
//! **Invariant: a walk takes a thousandth of the time.** One that took a second is not repeated for a quarter of an hour, and a
//! container whose files hang delays no other.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::join_all;
use muster_base::mount::MountId;
use muster_shim::process_identity;
use tokio::{sync::oneshot, time::Instant};

/// The pause after a walk, as a multiple of its duration.
const REST: u32 = 1_000;
/// The least pause: faster changes show elsewhere.
const REST_MIN: Duration = Duration::from_secs(60);
/// How many walks are started with a sample, so that a hundred containers are not walked at once.
const BEGUN_MAX: usize = 4;
/// The most walks at once, hanging ones included: each costs a thread.
const WALKS_MAX: usize = 32;
/// How long a sample waits for walks that were just started; most end by then.
const PATIENCE: Duration = Duration::from_millis(100);
/// A small stack that suffices: paths are on the heap.
const STACK_BYTES: usize = 128 * 1024;
/// The kernel's unit of counting.
const BLOCK_BYTES: u64 = 512;

/// A process: its number, and when it was started.
type ProcessKey = (i32, u64);

/// Measures the files of containers repeatedly.
#[derive(Debug, Default)]
pub(super) struct WrittenSampler {
    each: BTreeMap<String, ContainerWalk>,
}

/// One container.
#[derive(Debug)]
struct ContainerWalk {
    process: ProcessKey,
    pending: Option<oneshot::Receiver<WalkResult>>,
    latest_bytes: Option<u64>,
    next: Instant,
}

/// The result of a walk.
#[derive(Debug)]
struct WalkResult {
    bytes: Option<u64>,
    took: Duration,
}

impl ContainerWalk {
    /// Handles the result of a walk.
    fn hear(&mut self, walked: Option<WalkResult>) {
        self.pending = None;
        let Some(WalkResult { bytes, took }) = walked else { return };
        self.latest_bytes = bytes;
        self.next = Instant::now() + REST_MIN.max(took.saturating_mul(REST));
    }

    /// Whether a walk is under way; handles the result of one that has ended.
    fn is_under_way(&mut self) -> bool {
        match self.pending.as_mut().map(oneshot::Receiver::try_recv) {
            None => false,
            Some(Err(oneshot::error::TryRecvError::Empty)) => true,
            Some(walked) => {
                self.hear(walked.ok());
                false
            }
        }
    }

    /// Starts a walk, and waits a little for its result.
    async fn begin(&mut self) {
        let (answer, mut pending) = oneshot::channel();
        let process = self.process;
        let walk = move || {
            let began = std::time::Instant::now();
            let bytes = written(process);
            // The receiver has ended if the agent ends.
            let _ = answer.send(WalkResult { bytes, took: began.elapsed() });
        };
        let thread = std::thread::Builder::new().name("walk".to_owned()).stack_size(STACK_BYTES).spawn(walk);
        if let Err(error) = thread {
            tracing::warn!(%error, "no thread to go through the files of a container");
        }
        match tokio::time::timeout(PATIENCE, &mut pending).await {
            Ok(walked) => self.hear(walked.ok()),
            Err(_) => self.pending = Some(pending),
        }
    }
}

impl WrittenSampler {
    /// Returns what each container has written, as far as known, by its first process. Starts walks that are due.
    pub(super) async fn take(&mut self, containers: &BTreeMap<String, ProcessKey>) -> BTreeMap<String, u64> {
        self.each.retain(|name, walk| walk.is_under_way() || containers.contains_key(name));
        for (name, process) in containers {
            let fresh = || ContainerWalk { process: *process, pending: None, latest_bytes: None, next: Instant::now() };
            let walk = self.each.entry(name.clone()).or_insert_with(fresh);
            // It was restarted, perhaps without its earlier files.
            if walk.process != *process && walk.pending.is_none() {
                *walk = fresh();
            }
        }
        let under_way = self.each.values().filter(|walk| walk.pending.is_some()).count();
        let now = Instant::now();
        let due = self.each.values_mut().filter(|walk| walk.pending.is_none() && walk.next <= now);
        join_all(due.take(BEGUN_MAX.min(WALKS_MAX.saturating_sub(under_way))).map(ContainerWalk::begin)).await;
        let known = containers.iter().filter_map(|(name, process)| {
            let walk = self.each.get(name).filter(|walk| walk.process == *process)?;
            Some((name.clone(), walk.latest_bytes?))
        });
        known.collect()
    }
}

/// Measures what a container has written, in bytes on the disk.
fn written(process: ProcessKey) -> Option<u64> {
    let (pid, _) = process;
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    let folder = match root(&mounts)? {
        ContainerRoot::Upper(upper) => upper,
        ContainerRoot::Own => {
            let root = PathBuf::from(format!("/proc/{pid}/root/"));
            let (own, ours) = (fs::metadata(&root).ok()?, fs::metadata("/").ok()?);
            // A container with the host's root has no files of its own.
            if (own.dev(), own.ino()) == (ours.dev(), ours.ino()) {
                return None;
            }
            root
        }
    };
    process_identity::is_still(process).then(|| size_bytes(&folder)).flatten()
}

/// Where the files of a container's root are.
#[derive(Debug, PartialEq, Eq)]
enum ContainerRoot {
    /// Changes lie in this folder of the host, over its image.
    Upper(PathBuf),
    /// All files are its own.
    Own,
}

/// Parses its `/proc/PID/mountinfo`.
fn root(mountinfo: &str) -> Option<ContainerRoot> {
    // The last mount at the root is the visible one.
    let is_root = |line: &&str| line.split(' ').nth(4) == Some("/");
    let (_, about) = mountinfo.lines().rfind(is_root)?.split_once(" - ")?;
    let mut fields = about.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    if kind != "overlay" {
        return (!kind.starts_with("fuse")).then_some(ContainerRoot::Own);
    }
    let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
    // With very many layers, paths are relative to a folder of the runtime.
    upper.starts_with('/').then(|| ContainerRoot::Upper(super::disk::unescape(upper).into()))
}

/// Measures a folder, without what is mounted in it.
fn size_bytes(folder: &Path) -> Option<u64> {
    let (device, mount) = (fs::metadata(folder).ok()?.dev(), MountId::of(fs::File::open(folder).ok()?).ok()?);
    let (mut sum, mut linked, mut folders) = (0_u64, HashSet::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        // Files that are removed meanwhile do not count.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.dev() != device || !MountId::of_path(&entry.path()).is_ok_and(|found| found == mount) {
                continue;
            }
            if about.is_dir() {
                folders.push(entry.path());
            }
            if about.is_dir() || about.nlink() < 2 || linked.insert(about.ino()) {
                sum = sum.saturating_add(about.blocks().saturating_mul(BLOCK_BYTES));
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_container_is_found() {
        let before = "1 0 0:40 / / rw,relatime - ext4 /dev/sda1 rw\n2 1 0:5 / /proc rw - proc proc rw\n";
        let overlay =
            "3 1 0:41 / / rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/var/lib/c/my\\040diff,workdir=/w\n";
        assert_eq!(root(before), Some(ContainerRoot::Own));
        assert_eq!(root(&format!("{before}{overlay}")), Some(ContainerRoot::Upper("/var/lib/c/my diff".into())));
        for none in [
            "",
            "cut off",
            "1 0 0:40 / / rw - overlay overlay rw,lowerdir=/a",
            "1 0 0:40 / / rw - overlay overlay rw,upperdir=x/diff",
            "1 0 0:40 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw",
        ] {
            assert_eq!(root(none), None, "{none}");
        }
    }

    #[test]
    fn hard_links_count_once_by_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        let empty = size_bytes(folder.path()).unwrap();
        fs::write(at("deep/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(at("deep/file"), at("again")).unwrap();
        std::os::unix::fs::symlink("/", at("elsewhere")).unwrap();
        // A hole in a file takes no space.
        fs::File::create(at("hole")).unwrap().set_len(1 << 30).unwrap();
        let grown = size_bytes(folder.path()).unwrap() - empty;
        assert!((1 << 20..(1 << 20) + 65_536).contains(&grown), "{grown}");
        assert_eq!(size_bytes(&at("nowhere")), None);
    }

    #[test]
    fn what_is_mounted_in_a_folder_does_not_count() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("own/mounted")).unwrap();
        fs::create_dir(at("theirs")).unwrap();
        fs::write(at("theirs/file"), vec![1; 1 << 20]).unwrap();
        let run = |argv: &[&str]| std::process::Command::new(argv[0]).args(&argv[1..]).status().unwrap().success();
        let (from, to) = (at("theirs"), at("own/mounted"));
        if run(&["mount", "--bind", from.to_str().unwrap(), to.to_str().unwrap()]) {
            let measured = size_bytes(&at("own"));
            assert!(run(&["umount", to.to_str().unwrap()]));
            assert!(measured.unwrap() < 65_536, "{measured:?}");
        }
    }

    #[tokio::test]
    async fn missing_or_host_root_has_written_nothing() {
        let (pid, start_ticks) = process_identity::identity(std::process::id().cast_signed()).unwrap();
        let containers: BTreeMap<String, ProcessKey> =
            [("own".to_owned(), (pid, start_ticks)), ("gone".to_owned(), (pid, start_ticks + 1))].into();
        let mut walks = WrittenSampler::default();
        assert_eq!(walks.take(&containers).await, BTreeMap::new());
        let is_known = |walks: &mut WrittenSampler| walks.each.values_mut().all(|walk| !walk.is_under_way());
        while !is_known(&mut walks) {
            tokio::task::yield_now().await;
        }
        assert_eq!(walks.take(&containers).await, BTreeMap::new());
        assert!(
            walks.each.values().all(|walk| walk.next > Instant::now()),
            "it waits before it goes through them again"
        );
        assert_eq!(walks.take(&BTreeMap::new()).await, BTreeMap::new());
        assert!(walks.each.is_empty());
    }
}
