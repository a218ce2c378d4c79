//! Every store of every role, each with everything that may become of it: cut to half, bits flipped (anywhere, and in the
//! payload of pages alone), emptied, deleted, replaced by something else or by a folder, unreadable (it opens, and the disk
//! gives an error for each read; a database cannot be opened), put back from an older copy; while its role is stopped, when it
//! was killed with commands in flight, and, what is no database, while it runs.
//! (Disks without room and inodes, and those that were mounted anew to be read only, are of whole folders: `full_disk`.)
//!
//! A row of [`TABLE`] says what may be lost. What it does not name has to be there again: no command is done twice, each has
//! an outcome, no unit is forgotten or ended, who is revoked stays so, and commands are taken. A role that refuses to start
//! names the file and what to do, and starts once the file is back.
//!
//! The usual run tries one kind of damage on each small file, and several on each of the two large databases;
//! `TESTS_LONG=1` tries all.
//! `TESTS_SEED` picks other bits and other kinds; `TESTS_STORES=console.db` tries only rows whose name begins so, and
//! `TESTS_DAMAGE=Unreadable` only that, at all times.

mod table;

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::table::{
    ALL, Bits, Damage, Deleted, Either, Empty, FEW, Folder, Garbage, HOLDS, Half, Lost, NO_STORES, NOT_MADE_ANEW,
    Older, Payload, Refuses, Role, Row, Starts, TABLE, Then, Unreadable, When, row,
};
use crate::{
    fleet::{PATIENCE, Running, eventually, file, free_ports},
    roles::Roles,
};

const KEEPS: &str = "#!/bin/sh\necho start >> starts\nwhile :; do sleep 1; done\n";
const SEED: u64 = 25;

/// Numbers that are the same in each run with the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    fn flip(&mut self, bytes: &mut [u8], bits: usize, places: &[std::ops::Range<usize>]) {
        let total: usize = places.iter().map(ExactSizeIterator::len).sum();
        for _ in 0..bits.min(total * 8) {
            let mut at = self.below(total);
            for place in places {
                if at < place.len() {
                    bytes[place.start + at] ^= 1 << self.below(8);
                    break;
                }
                at -= place.len();
            }
        }
    }
}

/// Where the rows of a database are: the content of its tables' leaves. Of any other file: everywhere.
fn payload(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    if !bytes.starts_with(b"SQLite format 3\0") {
        return std::iter::once(0..bytes.len()).collect();
    }
    let size = match usize::from(u16::from_be_bytes([bytes[16], bytes[17]])) {
        1 => 65_536,
        size => size,
    };
    let leaf = |page: usize| {
        let (start, end) = (page * size, ((page + 1) * size).min(bytes.len()));
        let head = if page == 0 { 100 } else { start };
        let content = usize::from(u16::from_be_bytes([bytes[head + 5], bytes[head + 6]]));
        // Pages of the tables' definitions are the first few: one of them leaves no row anywhere.
        (bytes[head] == 0x0d && page > 2 && content > 0 && start + content < end).then(|| start + content..end)
    };
    (0..bytes.len() / size).filter_map(leaf).collect()
}

/// A fleet whose stores are damaged one after the other.
struct Trial {
    roles: Roles,
    agent: Option<Running>,
    /// A host that was revoked.
    revoked: String,
    pid: i64,
    /// A command that was done long ago.
    earlier: String,
    /// How often the unit was started on purpose.
    starts: usize,
    random: Random,
    round: usize,
    faults: Vec<String>,
}

/// Commands that were in flight when a role was killed.
struct InFlight {
    waits: String,
    notes: Vec<String>,
    folder: PathBuf,
}

/// As [`eventually`], for what is a fault if it does not come true.
fn within<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let began = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(last) if began.elapsed() > PATIENCE => {
                return Err(format!("{what}: not within {PATIENCE:?}; last: {last}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// What is at a path.
#[derive(PartialEq, Eq)]
enum Content {
    Link(PathBuf),
    File(Vec<u8>),
    Other,
}

impl Content {
    fn of(path: &Path) -> Self {
        match (fs::read_link(path), fs::read(path)) {
            (Ok(to), _) => Self::Link(to),
            (_, Ok(bytes)) => Self::File(bytes),
            _ => Self::Other,
        }
    }
}

/// Copies a file or a folder with all that it has.
pub(crate) fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Puts content in the place of a file, with its mode. (One whose program runs cannot be written to.)
fn put(path: &Path, content: &[u8]) {
    let permissions = fs::metadata(path).map(|found| found.permissions());
    remove(path);
    fs::write(path, content).unwrap();
    permissions.into_iter().for_each(|permissions| fs::set_permissions(path, permissions).unwrap());
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

impl Trial {
    fn start(seed: u64) -> Self {
        let mut roles = Roles::start();
        // So that hosts find the console again when it comes back.
        roles.hosts_port = free_ports(1);
        roles.restart_console();
        let agent = roles.agent(&["--join", &roles.token()]);
        let own = roles.wait_for_host("online")["id"].as_str().unwrap().to_owned();
        let second = roles.home.path().join("second");
        let stranger =
            Running::start(roles.home.command().args(["agent", "--join", &roles.token(), "--data-dir"]).arg(second));
        let revoked = eventually("a second host", || {
            let hosts = roles.json(&["host", "ls"]);
            let other = hosts.as_array().unwrap().iter().map(|host| host["id"].as_str().unwrap()).find(|id| *id != own);
            other.map(str::to_owned).ok_or_else(|| hosts.to_string())
        });
        // What says which key is in use is there once it was replaced.
        roles.ok(&["authority", "rotate", "signing"]);
        eventually("a finished rotation", || {
            let run = roles.home.muster(&["authority", "finish"]);
            if run.code == 0 { Ok(()) } else { Err(run.stderr) }
        });
        // An older copy of everything, from before there was a unit, and before anybody was revoked.
        assert_eq!(agent.stop().0, 0);
        roles.stop_console();
        roles.stop_broker();
        let older = roles.home.path().join("older");
        fs::create_dir(&older).unwrap();
        for folder in ["agent", "console", "broker"] {
            copy(&roles.home.path().join(folder), &older);
        }
        roles.revive_broker();
        roles.start_console();
        let agent = Some(roles.agent(&[]));
        roles.ok(&["host", "revoke", "--yes", &revoked]);
        drop(stranger);
        let random = Random(seed);
        let mut trial = Self {
            roles,
            agent,
            revoked,
            pid: 0,
            earlier: String::new(),
            starts: 1,
            random,
            round: 0,
            faults: Vec::new(),
        };
        trial.set_up();
        trial.pid = trial.shown().unwrap()["observed"]["pid"].as_i64().unwrap();
        trial
    }

    /// Puts into the console what only it has.
    fn set_up(&mut self) {
        let own = self.own();
        eventually("the host", || {
            let shown = self.roles.home.muster(&["-o", "json", "host", "show", &own]);
            let host: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
            if host["presence"]["state"] == "online" { Ok(()) } else { Err(shown.stdout) }
        });
        let path = file(&self.roles.home, "keeps", KEEPS);
        self.roles.ok(&["artifact", "create", &path, "--role", "keeps", "--version", "1"]);
        let config = file(&self.roles.home, "config.json", "{\"every_s\": 7}");
        self.roles.ok(&["config", "create", "keeps.main", "1", &config]);
        if !self.roles.ok(&["unit", "ls"]).contains("keeps") {
            let create =
                ["yuno", "create", "default/keeps", "--artifact", "keeps", "--config", "keeps.main@1", "--run"];
            self.roles.ok(&[&create[..], &["--host", &own]].concat());
            eventually("a unit that runs", || {
                self.shown().filter(|unit| unit["observed"]["pid"].is_i64()).ok_or_else(String::new)
            });
        }
        self.earlier = self.exec(&["echo", "earlier"]);
        self.outcome(&self.earlier.clone()).unwrap();
    }

    /// The id of the host that works.
    fn own(&self) -> String {
        fs::read_to_string(self.folder(Role::Agent).join("host")).unwrap().trim().to_owned()
    }

    fn folder(&self, role: Role) -> PathBuf {
        self.roles.home.path().join(match role {
            Role::Agent => "agent",
            Role::Console => "console",
            Role::Broker => "broker",
        })
    }

    /// The file of a row, if there is one now.
    fn path(&self, row: &Row) -> Option<PathBuf> {
        let mut paths = vec![self.folder(row.role)];
        for part in row.file.split('/') {
            paths = paths.iter().flat_map(|path| matching(path, part)).collect();
        }
        paths.sort();
        paths.pop()
    }

    /// Begins a command for the working host; gives its id.
    fn exec(&self, program: &[&str]) -> String {
        let own = self.host().unwrap();
        // What waits is told to go on only once the killed role works again.
        let args = [&["exec", "--no-wait", "--timeout", "10m", "--host", &own, "--"], program].concat();
        self.roles.ok(&args).trim().to_owned()
    }

    /// The working host, as the console knows it.
    fn host(&self) -> Result<String, String> {
        let run = self.roles.home.muster(&["-o", "json", "host", "ls"]);
        let hosts: Value = serde_json::from_str(&run.stdout).map_err(|_| run.stderr.clone())?;
        let mut ids = hosts.as_array().unwrap().iter().map(|host| host["id"].as_str().unwrap());
        ids.find(|id| *id != self.revoked).map(str::to_owned).ok_or(run.stdout)
    }

    /// The unit, as the console shows it, if it does.
    fn shown(&self) -> Option<Value> {
        let run = self.roles.home.muster(&["-o", "json", "unit", "show", "default/keeps"]);
        serde_json::from_str(&run.stdout).ok()
    }

    /// The outcome of a command, once it has one.
    fn outcome(&self, id: &str) -> Result<Value, String> {
        let started = Instant::now();
        loop {
            let run = self.roles.home.muster(&["-o", "json", "command", "show", id]);
            let shown: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
            if shown["hosts"][0]["outcome"].is_object() {
                return Ok(shown["hosts"][0]["outcome"].clone());
            }
            if run.code != 0 || started.elapsed() > PATIENCE {
                return Err(format!("{id}: {} {}", run.stderr, run.stdout));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Begins commands, one of which goes on, and kills the role while they are under way.
    fn put_in_flight(&mut self) -> InFlight {
        let folder = self.roles.home.path().join(format!("round-{}", self.round));
        fs::create_dir(&folder).unwrap();
        let at = folder.display();
        let script = format!("echo x >> {at}/begun; while ! [ -e {at}/go ]; do sleep 0.05; done; echo y >> {at}/ended");
        let waits = self.exec(&["sh", "-c", &script]);
        eventually("a command is restored", || if folder.join("begun").exists() { Ok(()) } else { Err(waits.clone()) });
        let notes = (0..4).map(|n| self.exec(&["sh", "-c", &format!("echo {n} >> {at}/notes")])).collect();
        InFlight { waits, notes, folder }
    }

    fn stop(&mut self, role: Role) {
        match role {
            Role::Agent => assert_eq!(self.agent.take().unwrap().stop().0, 0),
            Role::Console => self.roles.stop_console(),
            Role::Broker => self.roles.stop_broker(),
        }
    }

    fn kill(&mut self, role: Role) {
        match role {
            Role::Agent => self.agent.take().unwrap().kill(),
            Role::Console => self.roles.kill_console(),
            Role::Broker => self.roles.kill_broker(),
        }
    }

    /// Starts a role; what it said if it ended.
    fn begin(&mut self, role: Role) -> Result<(), String> {
        match role {
            Role::Agent => {
                let mut agent = self.roles.agent(&[]);
                let said = eventually("an agent that works, or its end", || {
                    let printed = agent.printed();
                    match agent.ended() {
                        true => Ok(Err(printed)),
                        false if printed.contains("connected to the broker") => Ok(Ok(())),
                        false => Err(printed),
                    }
                });
                self.agent = Some(agent);
                said
            }
            Role::Console => self.roles.try_console(),
            Role::Broker => self.roles.try_broker(),
        }
    }

    fn printed(&self, role: Role) -> String {
        match role {
            Role::Agent => self.agent.as_ref().map(Running::printed).unwrap_or_default(),
            Role::Console => self.roles.console_printed(),
            Role::Broker => self.roles.broker_printed(),
        }
    }

    /// Damages a file; false if that cannot be done to it.
    fn damage(&mut self, row: &Row, path: &Path, damage: Damage) -> bool {
        let relative = path.strip_prefix(self.roles.home.path()).unwrap();
        let older = self.roles.home.path().join("older").join(relative);
        if damage == Older && !older.is_file() {
            return false;
        }
        let bytes = fs::read(path).unwrap_or_default();
        if bytes.is_empty() && !matches!(damage, Deleted | Garbage | Folder | Unreadable) {
            return false;
        }
        if row.is_database && !matches!(damage, Bits(_) | Payload(_)) {
            for suffix in ["-wal", "-shm"] {
                remove(&with_suffix(path, suffix));
            }
        }
        match damage {
            Half => put(path, &bytes[..bytes.len() / 2]),
            Bits(bits) | Payload(bits) => {
                let places = if matches!(damage, Payload(_)) {
                    payload(&bytes)
                } else {
                    std::iter::once(0..bytes.len()).collect()
                };
                let mut bytes = bytes;
                self.random.flip(&mut bytes, bits, &places);
                put(path, &bytes);
            }
            Empty => put(path, b""),
            Deleted => remove(path),
            Garbage => put(path, &[0x55; 30_000]),
            Folder => {
                remove(path);
                fs::create_dir(path).unwrap();
                fs::write(path.join("inside"), "x").unwrap();
            }
            Unreadable => {
                remove(path);
                // At the first address of a process there is nothing: each read is an error of input.
                let to = if row.is_database { path } else { Path::new("/proc/self/mem") };
                std::os::unix::fs::symlink(to, path).unwrap();
            }
            Older => {
                remove(path);
                copy(&older, path);
            }
        }
        true
    }

    /// One kind of damage to one store.
    fn attempt(&mut self, row: &Row, damage: Damage, when: When) {
        let Some(then) = row.then(damage) else { return };
        self.round += 1;
        let what = format!("{:?} {} {damage:?} {when:?}", row.role, row.file);
        let began = Instant::now();
        let in_flight = (when == When::Killed).then(|| self.put_in_flight());
        let found = self.path(row);
        match when {
            When::Killed => self.kill(row.role),
            When::Stopped => self.stop(row.role),
            When::Running => {}
        }
        // Files of commands may be gone by now.
        let path = self.path(row).or(found);
        let mut is_damaged = path.as_ref().is_some_and(|path| {
            self.keep_whole(path);
            self.damage(row, path, damage)
        });
        let mut faults = Vec::new();
        if let (When::Running, Some(path)) = (when, path.as_deref()) {
            is_damaged &= self.go_on(row, path, &mut faults);
            self.stop(row.role);
        }
        if path.is_none()
            && !row.file.starts_with("exec/")
            && !row.file.ends_with("-wal")
            && !row.file.ends_with("-shm")
        {
            faults.push("there is no such file".to_owned());
        }
        let lost = self.begin_damaged(row, path.as_deref(), is_damaged, then, &mut faults);
        if let Err(fault) = self.settle(row, in_flight, lost, &mut faults) {
            faults.push(fault);
            if let Some(path) = &path {
                // The next row begins with everything whole.
                self.kill(row.role);
                self.put_back(path);
                self.begin(row.role)
                    .unwrap_or_else(|said| panic!("{what}: it does not start when all is back: {said}"));
            }
        }
        if let Some(path) = path.filter(|_| NOT_MADE_ANEW.contains(&row.file)) {
            self.put_back(&path);
        }
        if self.printed(row.role).contains("panicked") {
            faults.push(format!("it panicked: {}", self.printed(row.role)));
        }
        let verdict = if is_damaged { if faults.is_empty() { "ok    " } else { "FAULTY" } } else { "-     " };
        eprintln!("{verdict} {what} ({:.1} s)", began.elapsed().as_secs_f32());
        faults.iter().for_each(|fault| eprintln!("    {fault}"));
        self.faults.extend(faults.iter().map(|fault| format!("{what}: {fault}")));
    }

    /// Looks at a role whose file was damaged while it runs; whether the file is still as it was damaged.
    fn go_on(&mut self, row: &Row, path: &Path, faults: &mut Vec<String>) -> bool {
        let damaged = Content::of(path);
        if let Err(fault) = self.settle(row, None, Lost::Nothing, faults) {
            faults.push(format!("while it runs: {fault}"));
        }
        damaged == Content::of(path)
    }

    /// Goes on after a row that could not be tried to its end.
    fn recover(&mut self, what: &str) {
        eprintln!("FAULTY {what}: it could not be tried to its end");
        self.faults.push(format!("{what}: it could not be tried to its end"));
        for role in [Role::Broker, Role::Console, Role::Agent] {
            if role == Role::Agent {
                drop(self.agent.take());
            } else {
                self.kill(role);
            }
            self.begin(role).unwrap();
        }
        self.set_up();
        self.pid = self.unit_that_runs().unwrap();
        let work = self.folder(Role::Agent).join("units/default/keeps/work/starts");
        self.starts = fs::read_to_string(work).unwrap().lines().count();
    }

    /// Keeps a file, and what belongs to it, as it is before it is damaged.
    fn keep_whole(&self, path: &Path) {
        let whole = self.roles.home.path().join("whole");
        remove(&whole);
        fs::create_dir(&whole).unwrap();
        for path in ["", "-wal", "-shm"].map(|suffix| with_suffix(path, suffix)) {
            if path.exists() {
                copy(&path, &whole);
            }
        }
    }

    /// Brings that back, as a hint says.
    fn put_back(&self, path: &Path) {
        for path in ["", "-wal", "-shm"].map(|suffix| with_suffix(path, suffix)) {
            remove(&path);
            let kept = self.roles.home.path().join("whole").join(path.file_name().unwrap());
            // Folders of revisions may be gone with what ran in them.
            if kept.exists() && path.parent().is_some_and(Path::exists) {
                copy(&kept, &path);
            }
        }
    }

    /// Starts a role whose file is damaged, and looks at what it says. Gives what may be gone then.
    fn begin_damaged(
        &mut self,
        row: &Row,
        path: Option<&Path>,
        is_damaged: bool,
        then: Then,
        faults: &mut Vec<String>,
    ) -> Lost {
        let (begun, lost) = (self.begin(row.role), then.lost());
        let (Err(said), Some(path)) = (begun, path) else {
            match then {
                Refuses(_) if is_damaged => faults.push("it starts".to_owned()),
                Starts(_, words) if is_damaged && !self.printed(row.role).contains(words) => {
                    faults.push(format!("{words:?} is not in its log: {}", last_lines(&self.printed(row.role))));
                }
                _ => {}
            }
            return lost;
        };
        let mut words = vec!["hint", path.file_name().unwrap().to_str().unwrap()];
        match then {
            Refuses(more) => words.push(more),
            Starts(..) => faults.push(format!("it does not start: {}", last_lines(&said))),
            Either(_) => {}
        }
        words.retain(|word| !said.contains(word));
        if !words.is_empty() {
            faults.push(format!("it sends nothing of {words:?}: {}", last_lines(&said)));
        }
        self.put_back(path);
        self.begin(row.role).unwrap_or_else(|said| panic!("{}: it does not start when all is back: {said}", row.file));
        Lost::Nothing
    }

    /// Waits until all is as it was, but for what may be lost, and notes what is not.
    fn settle(
        &mut self,
        row: &Row,
        in_flight: Option<InFlight>,
        lost: Lost,
        faults: &mut Vec<String>,
    ) -> Result<(), String> {
        let is_ledger = lost == Lost::Ledger;
        within("the list of units", || {
            let run = self.roles.home.muster(&["-o", "json", "unit", "ls"]);
            if run.code == 0 && run.stdout.contains("default/keeps") {
                return Ok(());
            }
            // What hosts have said, they say again to a console that has lost it.
            if !is_ledger && run.code == 0 {
                faults.push(format!("its unit is not listed: {}", run.stdout));
            }
            Err(format!("{} {}", run.stdout, run.stderr))
        })?;
        within("a command that is taken", || {
            let own = self.host()?;
            let run = self.roles.home.muster(&["exec", "--timeout", "20s", "--host", &own, "--", "echo", "goes", "on"]);
            if run.stdout.contains("goes on") { Ok(()) } else { Err(format!("{} {}", run.stdout, run.stderr)) }
        })?;
        if let Some(in_flight) = in_flight {
            self.look_at(&in_flight, lost, faults)?;
        }
        if row.file == "artifacts/*" || row.file.contains("/rev/") {
            self.use_content(row.role)?;
        }
        let pid = self.unit_that_runs()?;
        let work = self.folder(Role::Agent).join("units/default/keeps/work/starts");
        let starts = fs::read_to_string(work).unwrap_or_default().lines().count();
        if pid != self.pid || starts != self.starts {
            let (was, before) = (self.pid, self.starts);
            faults.push(format!(
                "its unit was process {was} and started {before} times, and is {pid}, started {starts} times"
            ));
            (self.pid, self.starts) = (pid, starts);
        }
        match self.outcome(&self.earlier.clone()) {
            Ok(outcome) if outcome.to_string().contains("earlier") || outcome.to_string().contains("ZWFybGllcgo") => {}
            Ok(outcome) => faults.push(format!("the outcome of an earlier command is another: {outcome}")),
            Err(_) if is_ledger => {}
            Err(error) => faults.push(format!("the outcome of an earlier command is lost: {error}")),
        }
        let shown = self.roles.home.muster(&["-o", "json", "host", "show", &self.revoked]);
        let host: Value = serde_json::from_str(&shown.stdout).unwrap_or_default();
        if host["certificate_expires_ms"] != 0 {
            faults.push(format!("who was revoked is not: {} {}", shown.stdout, shown.stderr));
        }
        if is_ledger {
            self.set_up();
        }
        Ok(())
    }

    /// Has artifact and config be used: added again on the console's side, and started from on the agent's.
    fn use_content(&mut self, role: Role) -> Result<(), String> {
        if role == Role::Console {
            let path = file(&self.roles.home, "keeps", KEEPS);
            self.roles.ok(&["artifact", "create", &path, "--role", "keeps", "--version", "1"]);
            let stored = self.path(&row(role, "artifacts/*", HOLDS)).ok_or("there is no artifact")?;
            return match fs::read_to_string(stored) {
                Ok(content) if content == KEEPS => Ok(()),
                other => Err(format!("the artifact that was added again is {other:?}")),
            };
        }
        let run = self.roles.home.muster(&["yuno", "restart", "default/keeps"]);
        if run.code != 0 {
            return Err(format!("its unit cannot be started anew: {} {}", run.stdout, run.stderr));
        }
        self.starts += 1;
        self.pid = self.unit_that_runs()?;
        // It has what it was given, whatever was there.
        let folder = self.folder(role).join("units/default/keeps/rev");
        let configs = matching(&folder, "*").into_iter().map(|revision| revision.join("config.json"));
        let newest = configs.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).max();
        let (_, config) = newest.ok_or("there is no config")?;
        let config: Value = serde_json::from_slice(&fs::read(config).unwrap()).unwrap_or_default();
        if config["every_s"] == 7 { Ok(()) } else { Err(format!("its config is {config}")) }
    }

    /// The process of the unit.
    fn unit_that_runs(&self) -> Result<i64, String> {
        within("a unit that runs", || {
            let unit = self.shown().unwrap_or_default();
            match unit["observed"]["pid"].as_i64() {
                Some(pid) if unit["observed"]["phase"] == "running" => Ok(pid),
                _ => Err(unit.to_string()),
            }
        })
    }

    /// Looks at commands that were in flight.
    fn look_at(&self, in_flight: &InFlight, lost: Lost, faults: &mut Vec<String>) -> Result<(), String> {
        let InFlight { waits, notes, folder } = in_flight;
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        fs::write(folder.join("go"), "").unwrap();
        within("the end of a program", || if read("ended").is_empty() { Err(waits.clone()) } else { Ok(()) })?;
        if read("begun") != "x\n" || read("ended") != "y\n" {
            faults.push(format!("a command was done twice: {:?} {:?}", read("begun"), read("ended")));
        }
        for id in notes.iter().chain([waits]) {
            if lost == Lost::Ledger && self.roles.home.muster(&["command", "show", id]).code != 0 {
                continue;
            }
            match self.outcome(id) {
                Ok(outcome) if outcome["value"]["exit"]["code"] == 0 => {}
                // Of one that goes on its shim knows. Of one that was just begun when its agent was killed nobody may.
                Ok(outcome) if id != waits && outcome["value"]["status"] == "lost" => {}
                Ok(outcome) if lost == Lost::Certainty && id != waits && outcome.to_string().contains("set_back") => {}
                Ok(outcome) => faults.push(format!("{id} has the outcome {outcome}")),
                Err(error) => faults.push(format!("a command has no outcome: {error}")),
            }
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        read("notes").lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
        counts.retain(|_, count| *count > 1);
        if !counts.is_empty() {
            faults.push(format!("commands were done more than once: {counts:?}"));
        }
        Ok(())
    }

    /// Files of the roles that no row names.
    fn unnamed(&self) -> Vec<String> {
        let mut unnamed = Vec::new();
        for role in [Role::Agent, Role::Console, Role::Broker] {
            let mut folders = vec![self.folder(role)];
            while let Some(folder) = folders.pop() {
                for entry in fs::read_dir(folder).unwrap().flatten() {
                    let path = entry.path();
                    if path.is_dir() {
                        folders.push(path);
                        continue;
                    }
                    let name = path.strip_prefix(self.roles.home.path()).unwrap().display().to_string();
                    let rows = TABLE.iter().filter(|row| row.role == role);
                    let is_named = rows.clone().any(|row| self.matches(row, &path));
                    if !is_named && !NO_STORES.iter().any(|start| name.starts_with(start)) && !name.contains(".damaged")
                    {
                        unnamed.push(name);
                    }
                }
            }
        }
        unnamed
    }

    fn matches(&self, row: &Row, path: &Path) -> bool {
        let Ok(relative) = path.strip_prefix(self.folder(row.role)) else { return false };
        let (parts, wanted) = (relative.to_str().unwrap().split('/'), row.file.split('/'));
        relative.components().count() == row.file.split('/').count()
            && parts.zip(wanted).all(|(part, wanted)| fits(part, wanted))
    }
}

/// Whether a name is what a pattern with at most one `*` says. What was damaged and set aside is no such thing.
fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some(_) if name.starts_with('.') || name.contains(".damaged-") => false,
        Some((start, end)) => name.starts_with(start) && name.ends_with(end),
    }
}

fn matching(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    if !pattern.contains('*') {
        let path = folder.join(pattern);
        return if path.symlink_metadata().is_ok() { vec![path] } else { Vec::new() };
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| fits(entry.file_name().to_str().unwrap(), pattern)).map(|entry| entry.path()).collect()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(4)..].join("\n")
}

/// What is tried of a row in the usual run: one kind of damage to a file, and a few to a database.
fn picked(row: &Row, random: &mut Random) -> Vec<(Damage, When)> {
    let is_of_command = row.file.starts_with("exec/") || row.file.ends_with("-wal") || row.file.ends_with("-shm");
    // What is open in a database that was replaced is written to a file without a name.
    let is_open = row.is_database || row.file.ends_with("-wal") || row.file.ends_with("-shm");
    let whens: &[When] = match (is_of_command, is_open) {
        (true, _) => &[When::Killed],
        (false, true) => &[When::Stopped, When::Killed],
        (false, false) => &[When::Stopped, When::Killed, When::Running],
    };
    let all = || ALL.into_iter().flat_map(|damage| whens.iter().map(move |when| (damage, *when)));
    if let Ok(only) = std::env::var("TESTS_DAMAGE") {
        return all().filter(|(damage, _)| format!("{damage:?}") == only).collect();
    }
    if std::env::var_os("TESTS_LONG").is_some() {
        return all().collect();
    }
    match row.file {
        "agent.db" | "console.db" => FEW.iter().map(|damage| (*damage, whens[random.below(whens.len())])).collect(),
        _ => vec![(ALL[random.below(ALL.len())], whens[random.below(whens.len())])],
    }
}

#[test]
fn damaged_stores_lose_only_what_the_table_allows() {
    let seed = std::env::var("TESTS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    eprintln!("TESTS_SEED={seed}");
    let only = std::env::var("TESTS_STORES").unwrap_or_default();
    let mut trial = Trial::start(seed);
    let unnamed = trial.unnamed();
    trial.faults.extend(unnamed.iter().map(|name| format!("{name} is a file that a role keeps, and in no row")));
    for row in TABLE.iter().filter(|row| row.file.starts_with(&only)) {
        for (damage, when) in picked(row, &mut trial.random) {
            let attempted = catch_unwind(AssertUnwindSafe(|| trial.attempt(row, damage, when)));
            if attempted.is_err() {
                trial.recover(&format!("{:?} {} {damage:?} {when:?}", row.role, row.file));
            }
        }
    }
    assert!(trial.faults.is_empty(), "TESTS_SEED={seed}: {} faults:\n{}", trial.faults.len(), trial.faults.join("\n"));
}
