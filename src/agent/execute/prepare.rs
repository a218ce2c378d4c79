//! Turns a command into the exact program that a shim shall run.

use std::{
    collections::BTreeMap,
    ffi::CString,
    path::{Path, PathBuf},
};

use muster_rules::CommandRefusal;
use muster_shim::{CaptureResult, Launch, OutputMode, PROTOCOL, ResolvedUser, RestartLimits, RestartOn};
use muster_topics::{
    command::{Exec, Keep},
    outcome::{RefusalCode, Stream},
};
use nix::{
    sys::signal::Signal,
    unistd::{self, Uid, getgrouplist},
};

pub(super) use super::prepared_program::prepare;

pub(crate) use super::program_path::{SEARCH_PATH, find_program};

/// How long a command that has timed out may take to end after SIGTERM. It is short, because its sender waits.
const GRACE_MS: u64 = 5_000;

/// Returns how to launch a program, except for its standard input.
pub(crate) fn launch(exec: &Exec) -> Result<Launch, CommandRefusal> {
    check_texts(exec)?;
    let user = find_user(exec.user.as_deref())?;
    let cwd = exec.cwd.clone().unwrap_or_else(|| "/".into());
    let mut argv = words(exec)?;
    if let Some(program) = argv.first_mut() {
        *program = find_program(program, Path::new(&cwd))?;
    }
    let env = environment(&user.name, &user.dir.to_string_lossy(), &exec.env);
    // A process that already is this user need not switch, and may not be allowed to.
    let user = (user.uid != unistd::geteuid()).then(|| shim_user(&user)).transpose()?;
    Ok(assemble(exec, argv, env, cwd, user))
}

pub(super) fn words(exec: &Exec) -> Result<Vec<String>, CommandRefusal> {
    exec.words().map_err(|error| CommandRefusal::new(RefusalCode::Invalid, error.to_string()))
}

/// Assembles a launch from what was looked up for a command, on the host or in a container.
pub(super) fn assemble(
    exec: &Exec,
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
    user: Option<ResolvedUser>,
) -> Launch {
    Launch {
        protocol: PROTOCOL,
        argv,
        env,
        cwd,
        user,
        attributes: muster_shim::ProcessAttributes::default(),
        cgroup: muster_shim::cgroup::Cgroup::default(),
        inside: None,
        notify: None,
        forking: None,
        output: OutputMode::Capture(CaptureResult {
            max_bytes: exec.max_bytes(Stream::Stdout),
            stderr_max_bytes: exec.stderr_max_bytes,
            drop_stdout: exec.stdout == Keep::Drop,
            drop_stderr: exec.stderr == Keep::Drop,
            stdin: exec.stdin.is_some(),
        }),
        restart: RestartLimits { on: RestartOn::Never, budget: 0, reset_after_ms: 0 },
        timeout_ms: Some(exec.timeout_ms),
        stop_signal: Signal::SIGTERM as i32,
        grace_ms: GRACE_MS,
    }
}

/// Checks for NUL in texts, and for `=` in names of variables.
pub(super) fn check_texts(exec: &Exec) -> Result<(), CommandRefusal> {
    let invalid =
        |what: &str| CommandRefusal::new(RefusalCode::Invalid, format!("{what} is not supported on this system"));
    let pairs = exec.env.iter().flat_map(|(name, value)| [name, value]);
    if exec
        .argv
        .iter()
        .chain(&exec.shell)
        .chain(&exec.cwd)
        .chain(&exec.user)
        .chain(pairs)
        .any(|text| text.contains('\0'))
    {
        return Err(invalid("a NUL character in argument, folder or environment"));
    }
    if let Some(name) = exec.env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(invalid(&format!("an environment variable named {name:?}")));
    }
    Ok(())
}

/// Looks up a user by name or number; `None` is the agent's own.
fn find_user(name: Option<&str>) -> Result<unistd::User, CommandRefusal> {
    let found = match name {
        None => unistd::User::from_uid(unistd::geteuid()),
        Some(name) => unistd::User::from_name(name).and_then(|user| match (user, name.parse()) {
            (None, Ok(uid)) => unistd::User::from_uid(Uid::from_raw(uid)),
            (user, _) => Ok(user),
        }),
    };
    match (found, name) {
        (Ok(Some(user)), _) => Ok(user),
        (Ok(None), Some(name)) => {
            Err(CommandRefusal::new(RefusalCode::UnknownUser, format!("there is no user {name:?} here")))
        }
        // In a container the agent's user may have no entry.
        (Ok(None), None) => Ok(nameless()),
        (Err(error), _) => {
            let name = name.unwrap_or("the agent's own");
            Err(CommandRefusal::new(RefusalCode::UnknownUser, format!("user {name:?} cannot be looked up: {error}")))
        }
    }
}

fn nameless() -> unistd::User {
    unistd::User {
        name: unistd::geteuid().to_string(),
        passwd: CString::default(),
        uid: unistd::geteuid(),
        gid: unistd::getegid(),
        gecos: CString::default(),
        dir: "/".into(),
        shell: PathBuf::new(),
    }
}

fn shim_user(user: &unistd::User) -> Result<ResolvedUser, CommandRefusal> {
    let groups = CString::new(user.name.as_str())
        .map_err(|_| nix::Error::EINVAL)
        .and_then(|name| getgrouplist(&name, user.gid))
        .map_err(|error| {
            CommandRefusal::new(
                RefusalCode::UnknownUser,
                format!("the groups of {} cannot be looked up: {error}", user.name),
            )
        })?;
    Ok(ResolvedUser {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        groups: groups.into_iter().map(unistd::Gid::as_raw).collect(),
    })
}

/// Returns the environment of a program of this user.
pub(super) fn environment(user: &str, home: &str, given: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let set = [("PATH", SEARCH_PATH), ("HOME", home), ("USER", user), ("LOGNAME", user), ("LANG", "C.UTF-8")];
    let mut all = BTreeMap::from(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
    all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_topics::command::STDIN_MAX_BYTES;

    fn exec(argv: &[&str]) -> Exec {
        Exec::new(argv.iter().map(|word| (*word).to_owned()).collect(), 1_000)
    }

    #[test]
    fn programs_are_found_by_path_or_name() {
        let tool = tempfile::NamedTempFile::new().unwrap();
        let tool = tool.path().to_str().unwrap();
        for (program, cwd, found) in [
            ("/bin/sh", None, "/bin/sh"),
            (tool, None, tool),
            ("/no/such", None, "/no/such"),
            ("./x", None, "/./x"),
            ("bin/x", Some("/opt"), "/opt/bin/x"),
        ] {
            let exec = Exec { cwd: cwd.map(str::to_owned), ..exec(&[program, "a"]) };
            assert_eq!(launch(&exec).unwrap().argv, [found, "a"], "{program}");
        }
        let found = launch(&exec(&["sh"])).unwrap().argv.remove(0);
        assert!(SEARCH_PATH.split(':').any(|folder| found == format!("{folder}/sh")), "{found}");
    }

    #[test]
    fn invalid_programs_are_refused() {
        let env = |name: &str, value: &str| Exec { env: [(name.into(), value.into())].into(), ..exec(&["sh"]) };
        for (exec, code) in [
            (exec(&[]), RefusalCode::Invalid),
            (exec(&[""]), RefusalCode::Invalid),
            (Exec { shell: Some("true".into()), ..exec(&["sh"]) }, RefusalCode::Invalid),
            (Exec { shell: Some("\0".into()), ..exec(&[]) }, RefusalCode::Invalid),
            (exec(&["no-such-program"]), RefusalCode::NoSuchFile),
            (exec(&["sh", "a\0b"]), RefusalCode::Invalid),
            (Exec { cwd: Some("/\0".into()), ..exec(&["sh"]) }, RefusalCode::Invalid),
            (Exec { user: Some("no-such-user".into()), ..exec(&["sh"]) }, RefusalCode::UnknownUser),
            (Exec { user: Some("4294967294".into()), ..exec(&["sh"]) }, RefusalCode::UnknownUser),
            (env("", "1"), RefusalCode::Invalid),
            (env("A=B", "1"), RefusalCode::Invalid),
            (env("A", "\0"), RefusalCode::Invalid),
        ] {
            assert_eq!(launch(&exec).unwrap_err().code, code, "{exec:?}");
        }
    }

    #[test]
    fn shell_line_runs_in_a_shell() {
        let launch = launch(&Exec { shell: Some("echo $HOME | cat".into()), ..exec(&[]) }).unwrap();
        assert_eq!(launch.argv, ["/bin/sh", "-c", "echo $HOME | cat"]);
    }

    #[test]
    fn long_standard_input_is_refused() {
        use muster_topics::outcome::Data;
        let prepared = |data| prepare(&Exec { stdin: Some(data), ..exec(&["sh"]) }, None);
        let good = prepared(Data::new(&[0; STDIN_MAX_BYTES])).unwrap();
        assert_eq!(good.stdin.unwrap().len(), STDIN_MAX_BYTES);
        assert!(matches!(good.launch.output, OutputMode::Capture(CaptureResult { stdin: true, .. })));
        for wrong in [Data::new(&[0; STDIN_MAX_BYTES + 1]), Data::Base64("?".to_owned())] {
            assert_eq!(prepared(wrong).unwrap_err().code, RefusalCode::Invalid);
        }
        let none = prepare(&exec(&["sh"]), None).unwrap();
        assert!(
            none.stdin.is_none()
                && matches!(none.launch.output, OutputMode::Capture(CaptureResult { stdin: false, .. }))
        );
    }

    #[test]
    fn environment_is_minimal_and_overridable() {
        let given = [("A".to_owned(), "1".to_owned()), ("PATH".to_owned(), "/opt/bin".to_owned())].into();
        let env: BTreeMap<_, _> = launch(&Exec { env: given, ..exec(&["sh"]) }).unwrap().env.into_iter().collect();
        let names: Vec<&str> = env.keys().map(String::as_str).collect();
        assert_eq!(names, ["A", "HOME", "LANG", "LOGNAME", "PATH", "USER"]);
        assert_eq!((env["A"].as_str(), env["PATH"].as_str(), env["LANG"].as_str()), ("1", "/opt/bin", "C.UTF-8"));
    }

    #[test]
    fn other_user_has_home_and_groups() {
        let root = launch(&Exec { user: Some("root".into()), ..exec(&["sh"]) }).unwrap();
        assert_eq!(root.user.is_none(), unistd::geteuid().is_root());
        let nobody = launch(&Exec { user: Some("nobody".into()), ..exec(&["sh"]) }).unwrap();
        let user = nobody.user.unwrap();
        assert!(user.uid != 0 && user.groups.contains(&user.gid));
        assert!(nobody.env.contains(&("USER".into(), "nobody".into())));
        let by_number = launch(&Exec { user: Some(user.uid.to_string()), ..exec(&["sh"]) }).unwrap();
        assert_eq!(by_number.user, Some(user));
    }
}
