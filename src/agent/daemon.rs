//! Runs a program that stays (`exec --daemon`) as a transient unit, named after its command.
//!
//! The agent writes the unit's artifact itself, a script of one line. So everything that holds for units holds
//! for it: shim, log, limits, outliving the agent, listing, stopping and removal. It is
//! started once, is never restarted, and is removed a day after it ended.
//!
//! A program that stays in a container is also such a unit. The agent keeps its script but does not run it: it runs the
//! program inside the container, with the unit's arguments.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path};

use muster_rules::CommandRefusal;
use muster_topics::{
    Millis,
    command::{Exec, Verb},
    common::{CommonSpec, ProgramSpec},
    diagnostic::Diagnostic,
    name::{CommandId, Name, UnitName},
    outcome::{RefusalCode, Status},
    revision::RevisionKey,
    unit::{Phase, Restart, Rollback, Run, Spec, YunoSpec},
};

use super::{
    artifact,
    command_handler::TaskResult,
    execute::{daemon_launch, inside::RunningContainer},
    main_loop::AgentLoop,
    pending_writes::PendingWrite,
    store::{StoreError, unit},
    unit::first_process::FirstProcess,
};

/// How long a transient unit is kept after it has ended, so that operators can see how it ended, and read its log.
const KEPT_MS: Millis = 24 * 3_600_000;

/// The name of a command's unit.
fn unit_of(id: CommandId) -> Result<UnitName, CommandRefusal> {
    let name = format!("{}/exec-{id}", Name::default_realm());
    name.parse().map_err(|_| CommandRefusal::new(RefusalCode::Invalid, format!("{name} is not a valid unit name")))
}

/// The prepared unit of a command.
#[derive(Debug)]
pub(super) struct UnitDraft {
    pub(super) id: CommandId,
    pub(super) operator: Name,
    pub(super) unit: UnitName,
    pub(super) verb: Verb,
    /// The host's key for revisions.
    pub(super) key: RevisionKey,
}

impl AgentLoop {
    /// Prepares the unit of a daemon. Nothing begins until it is stored, so a later run of the agent repeats it.
    pub(super) fn prepare_daemon(&mut self, id: CommandId, operator: Name, exec: Exec) {
        let folder = self.executor.data_dir().to_owned();
        let exec = Exec { limits: exec.limits.and(self.executor.limits()), ..exec };
        let executor = self.executor.clone();
        let key = self.identity.present().membership.revision_key.clone();
        self.work.spawn(async move {
            let prepared = match executor.first_process(&exec).await {
                // Looking up a user may query a remote directory.
                Ok(first) => tokio::task::spawn_blocking(move || prepare(id, &exec, first, &folder)).await,
                Err(refusal) => Ok(Err(refusal)),
            };
            let prepared =
                prepared.unwrap_or_else(|error| Err(CommandRefusal::new(RefusalCode::Invalid, error.to_string())));
            TaskResult::Daemon(id, prepared.map(|(unit, verb)| Box::new(UnitDraft { id, operator, unit, verb, key })))
        });
    }

    pub(super) fn daemon_prepared(&mut self, id: CommandId, prepared: Result<Box<UnitDraft>, CommandRefusal>) {
        self.write(match prepared {
            Ok(daemon) => PendingWrite::Daemon(daemon),
            Err(refusal) => PendingWrite::Ended(id, refusal.into()),
        });
    }

    /// Removes transient units that ended long ago.
    pub(super) async fn forget_daemons(&self, now_ms: Millis) -> Result<(), StoreError> {
        let states = self.units.states().borrow().clone();
        let is_over = |phase| matches!(phase, Phase::Stopped | Phase::Failed);
        let mut forgotten = false;
        for (name, state) in states.iter() {
            let since_ms = state.observed.since_ms;
            // A deployment's unit goes with its deployment.
            if state.owner.is_none()
                && state.desired.spec.is_transient()
                && is_over(state.observed.phase())
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

/// Creates a command's unit, in the caller's transaction.
pub(super) async fn apply(
    tx: &mut sqlx::SqliteConnection,
    daemon: &UnitDraft,
    now_ms: Millis,
) -> Result<Status, StoreError> {
    let asker = unit::ChangeContext {
        operator: &daemon.operator,
        now_ms,
        key: Some(&daemon.key),
        is_document: false,
        values: None,
    };
    Ok(match unit::edit(tx, &daemon.unit, &daemon.verb, asker).await? {
        Ok(Some(unit::AppliedChange { generation, revision, hold })) => {
            Status::Applied { generation, revision, hold: hold.map(Box::new) }
        }
        Ok(None) => Status::Completed,
        Err(refusal) => refusal.into(),
    })
}

/// Prepares the unit; `first` is the first process of the container that it runs in, if it does.
fn prepare(
    id: CommandId,
    exec: &Exec,
    first: Option<FirstProcess>,
    data_dir: &Path,
) -> Result<(UnitName, Verb), CommandRefusal> {
    let (argv, spec) = match (&exec.container, first) {
        (Some(unit), Some(first)) => {
            let container = RunningContainer::open(unit, first)?;
            let launch = container.launch(exec)?;
            container.check(&launch)?;
            // User and paths inside the container are resolved again when it starts.
            let (args, env) = (launch.argv.clone(), exec.env.clone());
            (launch.argv, DaemonFields { args, env, cwd: launch.cwd, container: Some(unit.clone()) })
        }
        _ => on_host(exec)?,
    };
    let artifact = artifact::install(data_dir, script(&argv).as_bytes())
        .map_err(|error| CommandRefusal::new(RefusalCode::Invalid, format!("cannot write its script: {error}")))?;
    let unit = unit_of(id)?;
    let DaemonFields { args, env, cwd, container } = spec;
    let spec = YunoSpec {
        transient: true,
        container,
        program: ProgramSpec {
            args,
            env,
            cwd: Some(cwd),
            user: exec.user.clone(),
            limits: exec.limits,
            restart: Restart::Never,
            ..ProgramSpec::default()
        },
        common: CommonSpec { rollback: Rollback::Never, ..CommonSpec::default() },
        ..YunoSpec::new(artifact)
    };
    let verb = Verb::UnitApply { unit: unit.clone(), spec: Box::new(Spec::Yuno(spec)), run: Some(Run::Running) };
    Ok((unit, verb))
}

/// The fields of a unit that differ between the host and a container.
struct DaemonFields {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    container: Option<UnitName>,
}

fn on_host(exec: &Exec) -> Result<(Vec<String>, DaemonFields), CommandRefusal> {
    let refuse = |code, reason: Diagnostic| Err(CommandRefusal::new(code, reason));
    let launch = daemon_launch(exec)?;
    let program = launch.argv.first().map(String::as_str).unwrap_or_default();
    match fs::metadata(program) {
        Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => {}
        Ok(_) => {
            return refuse(
                RefusalCode::NotExecutable,
                Diagnostic::new(format_args!("cannot run {program}")).with_hint("is it executable?"),
            );
        }
        Err(error) => return refuse(RefusalCode::NoSuchFile, format!("{program}: {error}").into()),
    }
    if !Path::new(&launch.cwd).is_dir() {
        return refuse(RefusalCode::NoSuchFolder, format!("working directory {}: no such folder", launch.cwd).into());
    }
    let env = launch.env.into_iter().collect();
    Ok((launch.argv, DaemonFields { args: Vec::new(), env, cwd: launch.cwd, container: None }))
}

/// Builds a script that executes the program. It takes no arguments of its own, because arguments of units have
/// placeholders.
fn script(argv: &[String]) -> String {
    let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    format!("#!/bin/sh\nexec {}\n", argv.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_quotes_each_argument() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["printf", "%s|", "a b", "$HOME", "'", "\"", "{config}", "line\nline", ""].map(str::to_owned);
        let artifact = artifact::install(folder.path(), script(&words).as_bytes()).unwrap();
        let path = folder.path().join("artifacts").join(artifact.sha256.as_str());
        let output = std::process::Command::new(path).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), words[2..].join("|") + "|");
    }

    #[test]
    fn invalid_daemon_is_refused_without_a_unit() {
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
        assert!(spec.transient && spec.program.restart == Restart::Never && spec.program.args.is_empty());
    }
}
