//! A program that is to stay: a transient unit, named after its command.
//!
//! The unit's artifact is a script of one line that this agent writes itself, so everything that is known of units holds
//! for it: its shim, its log, its limits, that it outlives the agent, that it is listed, stopped and removed. It is
//! started once, whatever becomes of it or of the host, and forgotten a day after it ended.
//!
//! One that is to stay in a container is such a unit as well. Its script is then only what is kept of it: what runs is a
//! program inside, whose words are the unit's arguments.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path};

use muster_topics::{
    Millis,
    command::{Exec, Verb},
    name::{CommandId, Name, UnitName},
    outcome::{RefusalCode, Status},
    unit::{Phase, Restart, Rollback, Run, Spec, YunoSpec},
};

use super::{
    artifact,
    core::Agent,
    execute::{Container, daemon_launch},
    fact::Fact,
    road::Work,
    store::{StoreError, unit},
    unit::FirstProcess,
};
use crate::rules::Refusal;

/// How long a transient unit that has ended is kept, so that somebody may see how it ended, and read its log.
const KEPT_MS: Millis = 24 * 3_600_000;

/// The unit of a command.
fn unit_of(id: CommandId) -> Result<UnitName, Refusal> {
    let name = format!("{}/exec-{id}", Name::default_realm());
    name.parse().map_err(|_| Refusal::new(RefusalCode::Invalid, format!("{name} is no name of a unit")))
}

/// A unit that a command is about to make.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) id: CommandId,
    pub(super) operator: Name,
    pub(super) unit: UnitName,
    pub(super) verb: Verb,
}

impl Agent {
    /// Prepares the unit of a program that is to stay. Until it is stored nothing was begun, so a later life of the agent
    /// does the same again.
    pub(super) fn prepare_daemon(&mut self, id: CommandId, operator: Name, exec: Exec) {
        let folder = self.executor.data_dir().to_owned();
        let exec = Exec { limits: exec.limits.and(self.executor.limits()), ..exec };
        let executor = self.executor.clone();
        self.work.spawn(async move {
            let prepared = match executor.first_process(&exec).await {
                // Who a user is may be asked of a directory far away.
                Ok(first) => tokio::task::spawn_blocking(move || prepare(id, &exec, first, &folder)).await,
                Err(refusal) => Ok(Err(refusal)),
            };
            let prepared = prepared.unwrap_or_else(|error| Err(Refusal::new(RefusalCode::Invalid, error.to_string())));
            Work::Daemon(id, prepared.map(|(unit, verb)| Daemon { id, operator, unit, verb }))
        });
    }

    pub(super) fn daemon_prepared(&mut self, id: CommandId, prepared: Result<Daemon, Refusal>) {
        self.facts.push_back(match prepared {
            Ok(daemon) => Fact::Daemon(Box::new(daemon)),
            Err(refusal) => Fact::Ended(id, refusal.into()),
        });
    }

    /// Forgets transient units that ended long ago.
    pub(super) async fn forget_daemons(&mut self, now_ms: Millis) -> Result<(), StoreError> {
        let states = self.units.states().borrow().clone();
        let is_over = |phase| matches!(phase, Phase::Stopped | Phase::Failed);
        let mut forgotten = false;
        for (name, state) in states.iter() {
            let since_ms = state.observed.since_ms;
            if state.desired.spec.is_transient()
                && is_over(state.observed.phase)
                && since_ms.saturating_add(KEPT_MS) < now_ms
            {
                forgotten |= unit::forget_transient(&self.store, name, state.desired.generation).await?;
            }
        }
        if forgotten {
            self.units.desired_changed();
        }
        Ok(())
    }
}

/// Makes the unit of a command real, in somebody's transaction.
pub(super) async fn apply(
    tx: &mut sqlx::SqliteConnection,
    daemon: &Daemon,
    now_ms: Millis,
) -> Result<Status, StoreError> {
    let asker = unit::Asker { operator: &daemon.operator, now_ms };
    Ok(match unit::edit(tx, &daemon.unit, &daemon.verb, asker).await? {
        Ok(Some(unit::Applied { generation, revision, hold })) => {
            Status::Applied { generation, revision, hold: hold.map(Box::new) }
        }
        Ok(None) => Status::Completed,
        Err(refusal) => refusal.into(),
    })
}

/// `first` is the first process of the container that it is to run in, if it is.
fn prepare(
    id: CommandId,
    exec: &Exec,
    first: Option<FirstProcess>,
    data_dir: &Path,
) -> Result<(UnitName, Verb), Refusal> {
    let (argv, spec) = match (&exec.container, first) {
        (Some(unit), Some(first)) => {
            let container = Container::open(unit, first)?;
            let launch = container.launch(exec)?;
            container.check(&launch)?;
            // Who and what that is inside is looked up again when it starts.
            let (args, env) = (launch.argv.clone(), exec.env.clone());
            (launch.argv, Fields { args, env, cwd: launch.cwd, container: Some(unit.clone()) })
        }
        _ => on_host(exec)?,
    };
    let artifact = artifact::install(data_dir, script(&argv).as_bytes())
        .map_err(|error| Refusal::new(RefusalCode::Invalid, format!("its script cannot be written: {error}")))?;
    let unit = unit_of(id)?;
    let Fields { args, env, cwd, container } = spec;
    let spec = YunoSpec {
        transient: true,
        args,
        env,
        cwd: Some(cwd),
        container,
        user: exec.user.clone(),
        limits: exec.limits,
        restart: Restart::Never,
        rollback: Rollback::Never,
        ..YunoSpec::new(artifact)
    };
    let verb = Verb::UnitApply { unit: unit.clone(), spec: Box::new(Spec::Yuno(spec)), run: Some(Run::Running) };
    Ok((unit, verb))
}

/// What of a unit is not the same on the host and in a container.
struct Fields {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    container: Option<UnitName>,
}

fn on_host(exec: &Exec) -> Result<(Vec<String>, Fields), Refusal> {
    let refuse = |code, message: String| Err(Refusal::new(code, message));
    let launch = daemon_launch(exec)?;
    let program = launch.argv.first().map(String::as_str).unwrap_or_default();
    match fs::metadata(program) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => {}
        Ok(_) => {
            return refuse(RefusalCode::NotExecutable, format!("{program} cannot be run. hint: is it executable?"));
        }
        Err(error) => return refuse(RefusalCode::NoSuchFile, format!("{program}: {error}")),
    }
    if !Path::new(&launch.cwd).is_dir() {
        return refuse(RefusalCode::NoSuchFolder, format!("working directory {}: there is no such folder", launch.cwd));
    }
    let env = launch.env.into_iter().collect();
    Ok((launch.argv, Fields { args: Vec::new(), env, cwd: launch.cwd, container: None }))
}

/// A script that becomes a program. It has no arguments of its own, for those of a unit have placeholders in them.
fn script(argv: &[String]) -> String {
    let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    format!("#!/bin/sh\nexec {}\n", argv.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_the_program_word_by_word() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["printf", "%s|", "a b", "$HOME", "'", "\"", "{config}", "line\nline", ""].map(str::to_owned);
        let artifact = artifact::install(folder.path(), script(&words).as_bytes()).unwrap();
        let path = folder.path().join("artifacts").join(artifact.sha256.as_str());
        let output = std::process::Command::new(path).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), words[2..].join("|") + "|");
    }

    #[test]
    fn what_cannot_run_is_refused_before_there_is_a_unit() {
        let folder = tempfile::tempdir().unwrap();
        let exec = |argv: &[&str]| Exec::new(argv.iter().map(|word| (*word).to_owned()).collect(), 0);
        let id = CommandId::new();
        for (exec, code) in [
            (exec(&["/no/such"]), RefusalCode::NoSuchFile),
            (exec(&["no-such"]), RefusalCode::NoSuchFile),
            (exec(&["/etc/passwd"]), RefusalCode::NotExecutable),
            (Exec { cwd: Some("/no/such".into()), ..exec(&["sh"]) }, RefusalCode::NoSuchFolder),
            (Exec { user: Some("no-such-user".into()), ..exec(&["sh"]) }, RefusalCode::UnknownUser),
        ] {
            assert_eq!(prepare(id, &exec, None, folder.path()).unwrap_err().code, code, "{exec:?}");
        }
        let (unit, verb) = prepare(id, &exec(&["sh", "-c", "exit 3"]), None, folder.path()).unwrap();
        assert_eq!(unit.to_string(), format!("default/exec-{id}"));
        let Verb::UnitApply { spec, run: Some(Run::Running), .. } = verb else { panic!("a unit that runs") };
        let Spec::Yuno(spec) = *spec else { panic!("a yuno") };
        assert!(spec.transient && spec.restart == Restart::Never && spec.args.is_empty());
    }
}
