//! Commands, and the form for one.

use super::*;

pub(super) fn outcome(status: Ended, stdout: &str) -> Outcome {
    let stdout = Output { sent_bytes: 0, rest: Some(Data::Text(stdout.to_owned())), dropped_bytes: 4096 };
    Outcome { status, started_ms: Some(ago(9)), finished_ms: ago(7), stdout, stderr: Output::default() }
}

pub(super) fn line(hostname: &str, index: usize) -> CommandHost {
    let done = |status| HostProgress::Done { outcome: Received { at_ms: ago(6), value: outcome(status, hostname) } };
    let reason = || "file system of the agent's folder used: 100.0 %, above 97.0 %".to_owned();
    let progress = match index % 8 {
        0 => done(Ended::exited(Exit::Code(0))),
        1 => done(Ended::exited(Exit::Code(3))),
        2 => done(Ended::TimedOut),
        3 => done(Ended::Refused { code: RefusalCode::Denied, diagnostic: Diagnostic::new(hostname) }),
        4 => HostProgress::Waiting { away_since_ms: Some(ago(3_600)), reason: (index % 16 == 4).then(reason) },
        5 => HostProgress::Running,
        6 => HostProgress::Missing,
        _ => done(Ended::Lost),
    };
    CommandHost { host: HostId::random(), hostname: format!("{hostname}{index}"), progress }
}

pub(super) fn command(program: &str, hostname: &str, hosts: usize) -> Command {
    let text = |usual: &str| if hostname == HOSTILE { HOSTILE.to_owned() } else { usual.to_owned() };
    let exec = Exec {
        container: (program == "df").then(|| "default/shop".parse().ok()).flatten(),
        cwd: Some(text("/srv")),
        user: Some(text("nobody")),
        ..Exec::new(vec![program.to_owned(), text("two words")], 60_000)
    };
    Command {
        id: CommandId::new(),
        operator: "admin".parse().unwrap(),
        issued_ms: ago(10),
        expires_ms: ago(-590),
        verb: Verb::Exec(exec),
        target: None,
        hosts: (0..hosts).map(|index| line(hostname, index)).collect(),
        withheld: Vec::new(),
    }
}

pub(super) fn commands(hostname: &str) -> Vec<ListedCommand> {
    let restart = Command { verb: Verb::UnitRestart { unit: name(1) }, ..command("", hostname, 1) };
    let commands = [command("uname", hostname, 1), command("df", hostname, 24), restart, command("true", hostname, 0)];
    commands.map(ListedCommand::of).into()
}

pub(super) fn command_view(hostname: &str, output: &str) -> CommandView {
    let view = view(command("uname", hostname, 6), 1);
    let text = |text: &str| Text { tail: text.to_owned(), whole_bytes: text.len() };
    let outputs = view.command.hosts.iter().map(|line| (line.host, text(output), text(""))).collect();
    CommandView { outputs, ..view }
}

/// A page of a command.
pub(super) fn view(mut command: Command, page: usize) -> CommandView {
    let standing = |line: &CommandHost| HostCommandStatus {
        host: line.host,
        hostname: line.hostname.clone(),
        state: line.state(),
        status: line.status().cloned().map(Arc::new),
    };
    let course = Arc::new(CommandProgress::of(&command.hosts.iter().map(standing).collect::<Vec<_>>()));
    let (hosts, _) = shown(&course, None, page);
    command.hosts.sort_by_key(|line| hosts.iter().position(|host| *host == line.host).unwrap_or(usize::MAX));
    command.hosts.truncate(hosts.len());
    CommandView { command, course, only: None, outputs: vec![], page }
}

/// A finished command for hosts that a selector matched.
pub(super) fn command_over(hostname: &str, text: &str) -> CommandView {
    let select = format!("label.site={text:?}").parse().unwrap_or_else(|_| "label.site".parse().unwrap());
    let mut command = Command { target: Some(Target::Select(select)), ..command("uname", hostname, 24) };
    command.hosts.retain(|line| !matches!(line.state(), CommandState::Waiting | CommandState::Running));
    let refused = Ended::Refused { code: RefusalCode::NotSelected, diagnostic: Diagnostic::new(hostname) };
    command.hosts[0].progress = HostProgress::Done { outcome: Received { at_ms: ago(6), value: outcome(refused, "") } };
    view(command, 1)
}

pub(super) fn run(hostname: &str, mut input: RunForm, problem: Option<Problem>) -> RunView {
    let hosts: Vec<_> = (0..6).map(|index| host(&format!("{hostname}{index}"), index)).collect();
    input.ticked = vec![hosts[1].id.to_string()];
    RunView { hosts, found: 60, input, problem }
}
