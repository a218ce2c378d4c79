//! The page that runs a command.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{NewCommand, NewTarget, Problem};
use muster_base::argv;
use muster_topics::{
    command::{Batch, Exec, Keep, Target, Verb},
    name::{CommandId, HostId, UnitName},
    outcome::Data,
    select::HostSelect,
};
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    store::host::Search,
    web::{
        answer,
        extract::PageParams,
        guard::FormFields,
        session::WebSession,
        view::{
            commands::url,
            run::{RunForm, RunMode, RunTarget, RunView, TICKED_MAX},
        },
    },
};

/// The initial values of the form.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct RunPageQuery {
    /// This host is ticked.
    host: Option<HostId>,
    /// The container.
    container: Option<UnitName>,
    /// An earlier command to repeat.
    again: Option<CommandId>,
}

/// The form.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<RunPageQuery>,
) -> Response {
    let view = async {
        let mut input = match asked.again {
            Some(id) => again(&console, id).await?,
            None => RunForm::default(),
        };
        input.ticked.extend(asked.host.map(|host| host.to_string()));
        if let Some(container) = asked.container {
            input.container = container.to_string();
        }
        form(&console, input, None).await
    };
    answer::or_problem(&session, view.await.map(|view| answer::page(&session, &view, None)))
}

/// Returns the form of an earlier command. Its environment and standard input are not in the form, and are left out.
async fn again(console: &Console, id: CommandId) -> Result<RunForm, Error> {
    let command = console.command(id).await?;
    let (steps, way, keep_going) = match command.verb {
        Verb::Exec(exec) if exec.daemon => (vec![exec], RunMode::Daemon, false),
        Verb::Exec(exec) => (vec![exec], RunMode::Once, false),
        Verb::Batch(batch) => (batch.steps, RunMode::Lines, batch.keep_going),
        _ => return Ok(RunForm::default()),
    };
    let line = |exec: &Exec| exec.shell.clone().unwrap_or_else(|| muster_topics::argv::join(&exec.argv));
    let text = steps.iter().map(line).collect::<Vec<_>>().join("\n");
    let Some(exec) = steps.into_iter().next() else { return Ok(RunForm::default()) };
    let (aim, select) = match &command.target {
        None | Some(Target::Hosts(_)) => (RunTarget::These, String::new()),
        Some(Target::All) => (RunTarget::All, String::new()),
        Some(Target::Group(label)) => (RunTarget::Picked, format!("label.{label}")),
        Some(Target::Select(select)) => (RunTarget::Picked, select.to_string()),
    };
    Ok(RunForm {
        aim,
        select,
        ticked: command.hosts.iter().map(|line| line.host.to_string()).collect(),
        command: text,
        shell: exec.shell.is_some(),
        way,
        keep_going,
        no_stdout: exec.stdout == Keep::Drop,
        no_stderr: exec.stderr == Keep::Drop,
        // A daemon has no timeout, and a command made from it gets the default.
        timeout_s: match exec.timeout_ms {
            0 => RunForm::default().timeout_s,
            ms => ms.div_ceil(1000).to_string(),
        },
        container: exec.container.map(|unit| unit.to_string()).unwrap_or_default(),
        user: exec.user.unwrap_or_default(),
        cwd: exec.cwd.unwrap_or_default(),
        ..RunForm::default()
    })
}

/// Returns the form. A ticked host that is not among the first ones is named instead.
async fn form(console: &Console, mut input: RunForm, problem: Option<Problem>) -> Result<RunView, Error> {
    let (hosts, found) = console.hosts_page(&Search::default(), 0, TICKED_MAX).await?;
    let listed = |ticked: &String| hosts.iter().any(|host| host.id.to_string() == *ticked);
    let (ticked, others): (Vec<String>, Vec<String>) = input.ticked.into_iter().partition(listed);
    input.ticked = ticked;
    let named: Vec<String> = input.named.split_whitespace().map(str::to_owned).chain(others).collect();
    input.named = named.join(" ");
    Ok(RunView { hosts, found, input, problem })
}

/// Submits the command and redirects to its page; or shows the form again with a problem.
pub(in crate::web) async fn submit(
    State(console): State<Console>,
    session: WebSession,
    fields: FormFields,
) -> Response {
    let input = input(&fields);
    let submitted = match new_command(&input) {
        Ok(command) => console.submit(&session.operator, command).await,
        Err(error) => Err(error),
    };
    let error = match submitted {
        Ok(command) => return answer::see(&url(command.id)),
        Err(error) => error,
    };
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match form(&console, input, Some(error.problem)).await {
        Ok(view) => answer::html(status, session.frame().page(&view)),
        Err(error) => answer::problem(&session.frame(), &error),
    }
}

fn input(fields: &FormFields) -> RunForm {
    let text = |name: &str| fields.one(name).to_owned();
    RunForm {
        aim: match fields.one("target") {
            "all" => RunTarget::All,
            "picked" => RunTarget::Picked,
            _ => RunTarget::These,
        },
        select: text("select"),
        ticked: fields.all("host").map(str::to_owned).collect(),
        named: text("named"),
        command: fields.raw("command").to_owned(),
        shell: fields.one("shell") == "yes",
        way: match fields.one("way") {
            "lines" => RunMode::Lines,
            "daemon" => RunMode::Daemon,
            _ => RunMode::Once,
        },
        keep_going: fields.one("keep_going") == "yes",
        stdin: fields.raw("stdin").to_owned(),
        no_stdout: fields.one("no_stdout") == "yes",
        no_stderr: fields.one("no_stderr") == "yes",
        timeout_s: text("timeout_s"),
        expires_min: text("expires_min"),
        user: text("user"),
        cwd: text("cwd"),
        container: text("container"),
    }
}

/// Parses the form as a command.
fn new_command(input: &RunForm) -> Result<NewCommand, Error> {
    let hosts: Vec<String> =
        input.ticked.iter().cloned().chain(input.named.split_whitespace().map(str::to_owned)).collect();
    let target = match input.aim {
        RunTarget::All => NewTarget::All,
        RunTarget::Picked => {
            let select = input.select.parse::<HostSelect>();
            NewTarget::Select(select.map_err(|error| Error::invalid("bad_select", error.to_string()))?)
        }
        RunTarget::These if hosts.is_empty() => {
            return Err(Error::invalid("no_target", "no host is selected").hint("tick one, or choose all"));
        }
        RunTarget::These => NewTarget::Hosts(hosts),
    };
    let expires_in_ms = Some(number("the expiry time", &input.expires_min)?.saturating_mul(60_000));
    Ok(NewCommand { target, expires_in_ms, verb: new_verb(input)?, copied_from: None })
}

/// Parses what is to run: one command, several, or a daemon.
fn new_verb(input: &RunForm) -> Result<Verb, Error> {
    // Browsers send line ends that no shell understands.
    let text = input.command.replace("\r\n", "\n");
    match input.way {
        RunMode::Once => Ok(Verb::Exec(new_exec(input, &text)?)),
        RunMode::Daemon => {
            let exec = new_exec(input, &text)?;
            Ok(Verb::Exec(Exec { daemon: true, timeout_ms: 0, ..exec }))
        }
        RunMode::Lines if !input.stdin.is_empty() => {
            Err(Error::invalid("bad_batch", "a batch cannot read standard input")
                .hint("leave the standard input empty, or run a single command"))
        }
        RunMode::Lines => {
            let lines = text.lines().filter(|line| !line.trim().is_empty()).zip(1..);
            let step = |(line, number): (&str, usize)| {
                new_exec(input, line).map_err(|mut error| {
                    error.problem.diagnostic.cause =
                        format!("command {number} of the batch: {}", error.problem.diagnostic.cause);
                    error
                })
            };
            let steps = lines.map(step).collect::<Result<_, _>>()?;
            Ok(Verb::Batch(Batch { steps, keep_going: input.keep_going }))
        }
    }
}

/// Parses one command with its options.
fn new_exec(input: &RunForm, text: &str) -> Result<Exec, Error> {
    let bad_command = |error: argv::ArgvError| Error::invalid("bad_command", error.to_string()).hint(argv::RULE);
    let (argv, shell) = match input.shell {
        true => (Vec::new(), Some(text.to_owned())),
        false => (argv::split(text).map_err(bad_command)?, None),
    };
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let timeout_ms = number("the time limit", &input.timeout_s)?.saturating_mul(1000);
    let container = given(&input.container).map(|unit| unit.parse::<UnitName>()).transpose();
    let bad_container = |_| {
        Error::invalid("bad_container", format!("{:?} is not a unit name", input.container)).hint("write REALM/NAME")
    };
    let keep = |dropped| if dropped { Keep::Drop } else { Keep::Stream };
    Ok(Exec {
        shell,
        container: container.map_err(bad_container)?,
        cwd: given(&input.cwd),
        user: given(&input.user),
        stdin: given(&input.stdin).map(|text| Data::signed(text.replace("\r\n", "\n").as_bytes())),
        stdout: keep(input.no_stdout),
        stderr: keep(input.no_stderr),
        ..Exec::new(argv, timeout_ms)
    })
}

fn number(what: &str, text: &str) -> Result<u64, Error> {
    let number = text.parse().ok().filter(|number| (1..=u64::from(u32::MAX)).contains(number));
    number.ok_or_else(|| Error::invalid("bad_number", format!("{what} must be a whole number above 0")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> RunForm {
        RunForm { ticked: vec!["a".to_owned()], command: "uname -a".to_owned(), ..RunForm::default() }
    }

    #[test]
    fn form_makes_a_command() {
        let input = RunForm { named: "b  c".to_owned(), user: "nobody".to_owned(), ..filled() };
        let command = new_command(&input).unwrap();
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(command.target, NewTarget::Hosts(hosts));
        assert_eq!(command.expires_in_ms, Some(600_000));
        let Verb::Exec(exec) = command.verb else { panic!("{:?}", command.verb) };
        assert_eq!((exec.argv.as_slice(), exec.timeout_ms), (&["uname".to_owned(), "-a".to_owned()][..], 60_000));
        assert_eq!((exec.user.as_deref(), exec.cwd), (Some("nobody"), None));
        let input = RunForm {
            shell: true,
            command: "a |\r\n b".to_owned(),
            stdin: "x\r\n".to_owned(),
            no_stderr: true,
            ..filled()
        };
        let Verb::Exec(exec) = new_command(&input).unwrap().verb else { panic!("an exec") };
        assert_eq!((exec.argv.len(), exec.shell.as_deref()), (0, Some("a |\n b")));
        assert_eq!(exec.stdin.unwrap().to_bytes().unwrap(), b"x\n");
        assert_eq!((exec.stdout, exec.stderr), (Keep::Stream, Keep::Drop));
        let Verb::Exec(exec) = new_command(&RunForm { container: "shop/till".to_owned(), ..filled() }).unwrap().verb
        else {
            panic!("an exec")
        };
        assert_eq!(exec.container, Some("shop/till".parse().unwrap()));
        let all = new_command(&RunForm { aim: RunTarget::All, ..filled() }).unwrap();
        assert_eq!(all.target, NewTarget::All);
        let picked = RunForm { aim: RunTarget::Picked, select: "label.site = north".to_owned(), ..filled() };
        let select = "label.site=north".parse().unwrap();
        assert_eq!(new_command(&picked).unwrap().target, NewTarget::Select(select));
    }

    #[test]
    fn lines_make_a_batch_and_stay_a_daemon() {
        let text = "uname -a\r\n\r\n  df 'two words'\r\n".to_owned();
        let input = RunForm { way: RunMode::Lines, keep_going: true, command: text, ..filled() };
        let Verb::Batch(batch) = new_command(&input).unwrap().verb else { panic!("a batch") };
        let argv: Vec<Vec<String>> = batch.steps.iter().map(|step| step.argv.clone()).collect();
        assert_eq!(argv, [["uname", "-a"], ["df", "two words"]]);
        assert!(batch.keep_going && batch.steps.iter().all(|step| step.timeout_ms == 60_000));
        let wrong = RunForm { command: "true\necho 'a".to_owned(), ..input.clone() };
        let problem = new_command(&wrong).unwrap_err().problem;
        assert!(
            problem.code == "bad_command" && problem.diagnostic.cause.starts_with("command 2 of the batch: "),
            "{problem:?}"
        );
        let reads = RunForm { stdin: "x".to_owned(), ..input };
        assert_eq!(new_command(&reads).unwrap_err().problem.code, "bad_batch");
        let input = RunForm { way: RunMode::Daemon, ..filled() };
        let Verb::Exec(exec) = new_command(&input).unwrap().verb else { panic!("an exec") };
        assert!(exec.daemon && exec.timeout_ms == 0, "{exec:?}");
    }

    #[test]
    fn missing_or_wrong_fields_are_named() {
        let check = |input: RunForm, code: &str| assert_eq!(new_command(&input).unwrap_err().problem.code, code);
        check(RunForm { command: "echo 'a".to_owned(), ..filled() }, "bad_command");
        check(RunForm { command: String::new(), ..filled() }, "bad_command");
        check(RunForm { ticked: Vec::new(), ..filled() }, "no_target");
        check(RunForm { container: "shop".to_owned(), ..filled() }, "bad_container");
        for wrong in ["", "phase=failed", "fact.cpus>many"] {
            check(RunForm { aim: RunTarget::Picked, select: wrong.to_owned(), ..filled() }, "bad_select");
        }
        for wrong in ["", "0", "-1", "1.5", "x", "99999999999"] {
            check(RunForm { timeout_s: wrong.to_owned(), ..filled() }, "bad_number");
            check(RunForm { expires_min: wrong.to_owned(), ..filled() }, "bad_number");
        }
    }
}
