//! The page of one command, and its output as files.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use muster_topics::{
    name::{CommandId, HostId},
    outcome::Stream,
};
use serde::Deserialize;

use crate::{
    error::Error,
    state::Console,
    store,
    web::{
        answer,
        extract::{PageParams, PageSegments},
        ledger,
        session::WebSession,
        view::command::{CommandView, ShownOutput, shown},
    },
};

/// The requested part.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct CommandPageQuery {
    host: Option<HostId>,
    page: Option<usize>,
    part: Option<String>,
}

/// The page.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageSegments(id): PageSegments<CommandId>,
    PageParams(asked): PageParams<CommandPageQuery>,
) -> Response {
    let view = view(&console, id, &asked).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, asked.part.as_deref())))
}

async fn view(console: &Console, id: CommandId, asked: &CommandPageQuery) -> Result<CommandView, Error> {
    let mut command = console.command_alone(id).await?;
    let course = ledger::course(console, id).await?;
    if asked.host.is_some_and(|host| !course.hosts.contains(&host)) {
        return Err(Error::not_found("unknown_host", "this command was not for that host"));
    }
    let only = asked.host.filter(|_| course.hosts.len() > 1);
    let page = asked.page.unwrap_or(1).max(1);
    let (hosts, with_output) = shown(&course, only, page);
    command.hosts = store::command::of_hosts(console.shared.store.read(), id, hosts).await?;
    let mut outputs = Vec::new();
    if with_output {
        command.hosts.sort_by(|one, other| (&one.hostname, one.host).cmp(&(&other.hostname, other.host)));
        for line in &command.hosts {
            let (stdout, stderr) = console.output(id, line.host).await?;
            outputs.push((line.host, ShownOutput::of(&stdout), ShownOutput::of(&stderr)));
        }
    }
    Ok(CommandView { command, course, only, outputs, page })
}

/// Returns a whole stream as a file: browsers save it rather than show it.
pub(in crate::web) async fn download(
    State(console): State<Console>,
    session: WebSession,
    PageSegments((id, host, stream)): PageSegments<(CommandId, HostId, Stream)>,
) -> Response {
    let answer = async {
        let (stdout, stderr) = console.output(id, host).await?;
        let (word, bytes) = match stream {
            Stream::Stdout => ("stdout", stdout),
            Stream::Stderr => ("stderr", stderr),
        };
        let name = format!("attachment; filename=\"{id}-{host}.{word}.txt\"");
        let name = HeaderValue::from_str(&name).map_err(|error| Error::internal("naming a file", &error))?;
        let kind = HeaderValue::from_static("application/octet-stream");
        Ok(([(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, name)], bytes).into_response())
    };
    answer::or_problem(&session, answer.await)
}
